"""Runs a torch model once and lists every operator that the device would be asked for.

On the meta device nothing is computed and no weights are needed. Two things differ there from
a real device and are put right: where torch composes an operator of others but torch_npu has a
kernel for the whole, the whole is recorded (by its Python name, so only where Python calls it);
and where torch_npu has no kernel and torch composes the operator below autograd, the parts are
recorded as well.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tunan.ops.registrations import Origin, Registrations

_ROTARY = ("apply_rotary_pos_emb", "apply_rotary_emb", "apply_rotary_pos_emb_interleave")
_FRAMES = 12  # how far up an operator's caller is looked for
_KEYS = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeImplicitAutograd,
)


@dataclass(frozen=True)
class Operand:
    """One tensor that goes in or comes out."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    `module` is the path of the innermost module that was running and `classes` the class names
    from it outwards; `function` names the rotary function around it, if any; `view` says that
    no data is touched; `parent` is the composed operator that this is a part of and `parts`
    says that this one's parts follow it.
    """

    operator: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    module: str
    classes: tuple[str, ...]
    function: str = ""
    view: bool = False
    parent: str = ""
    by_parts: bool = False


@dataclass
class Trace:
    """The calls of one step, in order."""

    calls: list[Call] = field(default_factory=list)


def trace(
    model: torch.nn.Module,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    known: Registrations,
) -> tuple[Trace, Any]:
    """Runs `model(*arguments, **keywords)` and returns its calls and its result.

    The model is switched to inference for the run and back; gradients are off.
    """
    recorder = _Recorder(known)
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), recorder.watching(model), _Wholes(recorder), recorder:
            result = model(*arguments, **keywords)
    finally:
        model.train(training)
    return recorder.trace, result


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, known: Registrations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known = known
        self.trace = Trace()
        self._stack: list[tuple[str, str]] = []
        self._parents: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        place = len(self.trace.calls)
        result, by_parts = self._run(func, args, keywords)
        self.record(
            func.name(), (args, keywords), result, view=func.is_view, by_parts=by_parts, place=place
        )
        return result

    def _run(self, func: Any, args: Any, keywords: Any) -> tuple[Any, bool]:
        """Runs an operator, by its parts where that is what the device would do."""
        if func.is_view or self.known.origin(func.name()) is not Origin.COMPOSED:
            return func(*args, **keywords), False
        before = len(self.trace.calls)
        self._parents.append(func.name())
        try:
            with self:
                return _run_parts(func, args, keywords), True
        except (RuntimeError, NotImplementedError):
            # The composition looks at data, which a meta tensor has not got.
            del self.trace.calls[before:]
            return func(*args, **keywords), False
        finally:
            self._parents.pop()

    def record(
        self,
        operator: str,
        inputs: Any,
        outputs: Any,
        *,
        place: int,
        view: bool = False,
        by_parts: bool = False,
    ) -> None:
        """Adds a call at `place`, before those that it was made of."""
        path, _ = self._stack[-1] if self._stack else ("", "")
        call = Call(
            operator=operator,
            inputs=_operands(inputs),
            outputs=_operands(outputs),
            module=path,
            classes=tuple(name for _, name in reversed(self._stack)),
            function=_rotary_function(),
            view=view,
            parent=self._parents[-1] if self._parents else "",
            by_parts=by_parts,
        )
        self.trace.calls.insert(place, call)

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """Keeps the stack of running modules while a model runs."""
        handles = []
        for path, module in model.named_modules():
            entry = (path, type(module).__name__)
            handles.append(module.register_forward_pre_hook(self._entering(entry)))
            handles.append(module.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entering(self, entry: tuple[str, str]) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._stack.append(entry)

        return enter

    def _leaving(self, *_: Any) -> None:
        self._stack.pop()


class _Wholes(TorchFunctionMode):
    """Records what torch composes and torch_npu has a kernel for as one call."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        whole = self.recorder.known.replaces_composition(name)
        if whole is None or (name == "contiguous" and args[0].is_contiguous()):
            return func(*args, **keywords)
        calls = self.recorder.trace.calls
        before = len(calls)
        result = func(*args, **keywords)
        recorded = [call for call in calls[before:] if not call.view]
        if recorded and not _is_operator(recorded, name):
            del calls[before:]
            self.recorder.record(whole, (args, keywords), result, place=before)
        return result


def _is_operator(calls: Sequence[Call], name: str) -> bool:
    """Whether the calls are one of that name: another overload, with a kernel of its own."""
    return len(calls) == 1 and calls[0].operator.partition("::")[2].partition(".")[0] == name


def _run_parts(func: Any, args: Any, keywords: Any) -> Any:
    for key in _KEYS:
        if func.has_kernel_for_dispatch_key(key):
            return func._op_dk(key, *args, **keywords)
    raise NotImplementedError(func.name())


def _operands(values: Any) -> tuple[Operand, ...]:
    return tuple(
        Operand(
            str(value.dtype).removeprefix("torch."),
            tuple(value.shape),
            value.numel() * value.element_size(),
        )
        for value in tree_leaves(values)
        if isinstance(value, torch.Tensor)
    )


def _rotary_function() -> str:
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None or frame.f_code.co_name == "_call_impl":
            return ""
        if frame.f_code.co_name in _ROTARY:
            return frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return ""
