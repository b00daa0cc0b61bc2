"""`replace(model, backend)`: exchanges a torch model's modules for ones a target runs best."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from tunan.errors import UsageError
from tunan.ops import gelu, layer_norm, npu_operators, rms_norm, rotary, swiglu

Backend = Literal["npu", "cpu", "reference"]
BACKENDS: tuple[Backend, ...] = ("npu", "cpu", "reference")
_Rule = Callable[[nn.Module, str], nn.Module | str | None]


@dataclass(frozen=True)
class Replaced:
    """One module that was exchanged, and the operator that its part runs on `backend`."""

    path: str
    was: str
    operator: str


@dataclass(frozen=True)
class Kept:
    """One module that looked like a candidate and was not exchanged."""

    path: str
    module: str
    reason: str


@dataclass(frozen=True)
class Replacements:
    """What `replace` did."""

    backend: Backend
    replaced: tuple[Replaced, ...]
    kept: tuple[Kept, ...]


def replace(model: nn.Module, backend: Backend = "npu", *, fast_gelu: bool = False) -> Replacements:
    """Exchanges LayerNorm, RMSNorm, GELU, SwiGLU and rotary application within `model`, in place.

    Meant for inference: parameters are kept, except that a SwiGLU joins the weights of gate and
    up (its state dict changes). Backends: "npu" calls torch_npu's fused operators, "cpu" torch's
    own, "reference" the formulas in float32. `fast_gelu` takes npu_fast_gelu's form for every
    GELU, which is another function (see `tunan.ops.gelu`).

    Raises UsageError for an unknown backend or what is no module, and OutsideError where
    torch_npu is missing.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"replace() takes a torch module, not {type(model).__name__}")
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend '{backend}'; known are {', '.join(BACKENDS)}")
    if backend == "npu":
        npu_operators.require()
    replaced: list[Replaced] = []
    kept: list[Kept] = []
    for path, module, outcome, operator in _outcomes(model, backend, fast_gelu):
        if isinstance(outcome, str):
            kept.append(Kept(path, type(module).__name__, outcome))
            continue
        if outcome is not module:
            _put(model, path, outcome)
        shown = operator if backend == "npu" else backend
        replaced.append(Replaced(path, type(module).__name__, shown))
    return Replacements(backend, tuple(replaced), tuple(kept))


def _outcomes(
    model: nn.Module, backend: str, fast_gelu: bool
) -> Iterator[tuple[str, nn.Module, nn.Module | str, str]]:
    rules: tuple[_Rule, ...] = (
        rms_norm.replacement,
        layer_norm.replacement,
        partial(gelu.replacement, fast=fast_gelu),
        swiglu.replacement,
        rotary.replacement,
        _experts,
    )
    for path, module in list(model.named_modules()):
        for rule in rules:
            outcome = rule(module, backend)
            if outcome is not None:
                yield path, module, outcome, _operator(outcome)
                break


def _operator(outcome: nn.Module | str) -> str:
    if isinstance(outcome, gelu.GELU):
        return gelu.OPERATORS[outcome.form]
    if isinstance(outcome, rotary.RealRotaryEmbedding):
        return "cos and sin instead of complex numbers"
    known = {
        rms_norm.RMSNorm: rms_norm.OPERATOR,
        layer_norm.LayerNorm: layer_norm.OPERATOR,
        swiglu.SwiGLU: swiglu.OPERATOR,
    }
    return known.get(type(outcome), rotary.OPERATOR)


def _experts(module: nn.Module, backend: str) -> str | None:
    # DeepSeek-V3 in transformers 5.5 calls them NaiveMoe.
    if not type(module).__name__.endswith(("Experts", "NaiveMoe")):
        return None
    return "routed experts: vllm-ascend runs them with npu_grouped_matmul"


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    if not path:
        raise UsageError("the model is itself one of the modules to exchange; wrap it in another")
    setattr(model.get_submodule(parent), name, module)
