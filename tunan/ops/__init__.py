"""Operators: which runs what on which target, the audit before a deployment, replacements.

    tunan.ops.audit(model, example_inputs, target)     what becomes of every operator
    tunan.ops.replace(model, backend="npu")            fused operators in a torch model
    tunan.ops.cpu_fallback(operator)                   an operator the device lacks, on the CPU

Importing this loads neither torch nor torch_npu; calling does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunan.ops.auditing import audit
    from tunan.ops.fallback import cpu_fallback
    from tunan.ops.replacement import replace

__all__ = ["audit", "cpu_fallback", "replace"]

_HOMES = {"audit": "auditing", "cpu_fallback": "fallback", "replace": "replacement"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
