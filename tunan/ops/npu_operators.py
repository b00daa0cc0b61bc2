"""The NPU operators that replacements call, and stand-ins to trace them without torch_npu."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tunan.errors import OutsideError
from tunan.ops.registrations import Registrations


def _first(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    leading = x.shape[: x.dim() - gamma.dim()] + (1,) * gamma.dim()
    return torch.empty_like(x), x.new_empty(leading, dtype=torch.float32)


def _swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim] //= 2
    return x.new_empty(shape)


# Shapes of the results only; nothing is computed by these.
_SHAPES: dict[str, Callable[..., Any]] = {
    "npu_rms_norm": _rms_norm,
    "npu_rotary_mul": _first,
    "npu_interleave_rope": _first,
    "npu_swiglu": _swiglu,
    "npu_fast_gelu": _first,
    "npu_gelu": _first,
}


def available() -> bool:
    """Whether the NPU operators are there, really or as stand-ins."""
    return hasattr(torch.ops.npu, "npu_rms_norm")


def require() -> None:
    """Makes the NPU operators callable; raises OutsideError where torch_npu is missing."""
    if available():
        return
    try:
        import torch_npu  # noqa: F401
    except ImportError as error:
        raise OutsideError(
            f"torch_npu cannot be imported ({error}); install it, or use backend='cpu'"
        ) from error


@contextmanager
def declared(known: Registrations) -> Iterator[None]:
    """Within it the operators have torch_npu's schemas and results of the right shape, so that
    a model that calls them can be traced on the meta device where torch_npu is not installed."""
    if available():
        yield
        return
    library = torch.library.Library("npu", "DEF")  # type: ignore[no-untyped-call]
    try:
        for name, shape in _SHAPES.items():
            schema = known.schema(f"npu::{name}").removeprefix("npu::")
            library.define(schema)  # type: ignore[no-untyped-call]
            library.impl(name, shape, "Meta")  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
