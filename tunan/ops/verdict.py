"""What becomes of one operator on a target."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from tunan.ops.device_facts import devices, kernel_dtypes
from tunan.ops.map import Run, catalogue
from tunan.ops.quantised import NO_FP8, TO_CONVERT
from tunan.ops.registrations import Origin, Registrations
from tunan.ops.units import unit_of

if TYPE_CHECKING:
    from tunan.ops.trace import Call, Operand


# How the weights of a layer are quantised, and where W8A8 stands: in config.json or in ModelSlim's
# description; empty: they are not.
Scheme = Literal["", "w8a8", "w8a8 by description", "fp8"]


class Fate(StrEnum):
    """How an operator runs, best first."""

    FUSED = "fused"  # part of a module that one NPU kernel does as a whole
    NPU = "npu"  # a kernel of its own
    COMPOSED = "composed"  # torch makes it of operators that could not be listed
    CPU = "cpu"  # falls back: inputs to the host, result back
    UNSUPPORTED = "unsupported"  # raises an error at this dtype or on this chip


@dataclass(frozen=True)
class Verdict:
    """What becomes of an operator: `fate` in the engine, `as_written` if torch runs the model's
    own code, why, and what to use instead (empty: nothing known). `unit` is the part of the
    model in the operator map's terms."""

    fate: Fate
    as_written: Fate
    reason: str
    replacement: str
    unit: str


# Parts that tunan.ops.replace can exchange.
REPLACED_HERE = {
    "RMSNorm": "npu_rms_norm",
    "SiluAndMul": "npu_swiglu",
    "RotaryEmbedding": "npu_rotary_mul",
    "DeepseekScalingRotaryEmbedding": "npu_interleave_rope",
    "QuickGELU": "npu_fast_gelu",
}
_NO_INPUT_CHECK = ("aten::_to_copy", "aten::copy_")


def judge(
    call: "Call",
    known: Registrations,
    target: str,
    *,
    engine: bool,
    dtype: str = "",
    weights: Scheme = "",
) -> Verdict:
    """What becomes of a call on a target. Views and what has been split up are not to be asked.

    `engine` says that vLLM will run the model, with the fused kernels of the operator map, and
    not torch by itself; `dtype` is then the model's, and `weights` says how those of the
    call's layer are quantised.
    """
    unit = unit_of(call)
    wrong = _wrong_model_dtype(call, target, dtype) if engine else ""
    if wrong:
        return Verdict(Fate.UNSUPPORTED, Fate.UNSUPPORTED, wrong, "", unit)
    lacking = _lacking(call, target)
    if lacking:
        reason = f"the chip has no {lacking}{_other_dtype(lacking)}"
        return Verdict(Fate.UNSUPPORTED, Fate.UNSUPPORTED, reason, "", unit)
    if weights:
        return _quantised(unit, target, weights)
    fate, reason, instead = _as_written(call, known, target)
    if not engine:
        here = REPLACED_HERE.get(unit, "")
        instead = instead or (f"tunan.ops.replace: {here}" if here else "")
        return Verdict(fate, fate, reason, instead if fate is not Fate.FUSED else "", unit)
    run = _in_engine(unit, target)
    if run is not None and not run.runs:
        return Verdict(Fate.UNSUPPORTED, fate, run.note, "", unit)
    if run is not None and run.fused:
        reason = reason if fate is Fate.FUSED else "one kernel does the part as a whole"
        return Verdict(Fate.FUSED, fate, reason, run.operator or "", unit)
    return Verdict(fate, fate, reason, instead, unit)


QUANTISED = {
    "ReplicatedLinear": "Linear (W8A8)",
    "FusedMoE": "FusedMoE (W8A8)",
}


def _quantised(unit: str, target: str, weights: Scheme) -> Verdict:
    """What becomes of a part whose weights are quantised, which torch does not run by itself."""
    if weights == "fp8":
        return Verdict(Fate.UNSUPPORTED, Fate.UNSUPPORTED, NO_FP8, TO_CONVERT, unit)
    unit = QUANTISED[unit]
    run = _in_engine(unit, target)
    if run is None:
        reason = "how quantised layers run on this chip is not known"
        return Verdict(Fate.UNSUPPORTED, Fate.UNSUPPORTED, reason, "", unit)
    if weights == "w8a8" and not devices().targets[target].compressed_tensors:
        reason = (
            "vllm-ascend reads no compressed-tensors on this chip, only ModelSlim's description"
        )
        return Verdict(Fate.UNSUPPORTED, Fate.UNSUPPORTED, reason, "", unit)
    fate = Fate.FUSED if run.runs else Fate.UNSUPPORTED
    how = f"{run.operator} ({run.note})" if run.runs else ""
    return Verdict(fate, fate, "int8 weights and inputs" if run.runs else run.note, how, unit)


def _wrong_model_dtype(call: "Call", target: str, dtype: str) -> str:
    """Why a chip does not run a model of a dtype, for what computes in floating point."""
    runs = devices().targets[target].runs
    if not dtype or dtype in runs:
        return ""
    if not any("float" in d or "complex" in d for d in _dtypes((*call.inputs, *call.outputs))):
        return ""
    return f"the chip runs no {dtype} models: use --dtype {' or '.join(runs)}"


def _as_written(call: "Call", known: Registrations, target: str) -> tuple[Fate, str, str]:
    """Fate, reason and replacement where torch calls the operator itself."""
    origin = known.origin(call.operator)
    dtypes = kernel_dtypes().get(_base(call.operator))
    if origin is Origin.UNKNOWN:
        reason = f"torch_npu {known.torch_npu} does not know the operator"
        return Fate.UNSUPPORTED, reason, "tunan.ops.cpu_fallback"
    if origin is Origin.CPU:
        return Fate.CPU, f"torch_npu {known.torch_npu} has no kernel", ""
    wrong = _undocumented(call, dtypes) if dtypes and origin is Origin.KERNEL else ""
    if wrong:
        return Fate.UNSUPPORTED, f"the kernel takes no {wrong}{_other_dtype(wrong)}", ""
    if call.operator.startswith(("npu::", "atb::")):
        return Fate.FUSED, "is an NPU kernel", ""
    if origin is Origin.COMPOSED:
        return Fate.COMPOSED, "torch composes it and looks at data on the host", ""
    documented = dtypes is not None and devices().targets[target].documented
    return Fate.NPU, "has a kernel" if documented else DTYPES_UNKNOWN, ""


DTYPES_UNKNOWN = "has a kernel; its dtypes are not known"


def _in_engine(unit: str, target: str) -> Run | None:
    """How the engine runs a part of the model; None for what the map does not know."""
    known = catalogue()
    if unit not in known.modules or target not in known.targets:
        return None
    return known.run(unit, target)


def _lacking(call: "Call", target: str) -> str:
    lacks = devices().targets[target].lacks
    return next((dtype for dtype in _dtypes((*call.inputs, *call.outputs)) if dtype in lacks), "")


def _undocumented(call: "Call", dtypes: frozenset[str]) -> str:
    """The first dtype among the inputs that the kernel is not documented for.

    Looked at are the first tensor and all floating and complex ones: the others are indices
    and masks, whose dtypes the documentation gives apart.
    """
    if _base(call.operator) in _NO_INPUT_CHECK:
        return ""
    found = _dtypes(call.inputs[:1]) + [
        dtype for dtype in _dtypes(call.inputs) if dtype.startswith(("float", "bfloat", "complex"))
    ]
    return next((dtype for dtype in found if dtype not in dtypes), "")


def _other_dtype(dtype: str) -> str:
    """Advice what to compute in instead of a dtype that the target lacks, to follow the reason."""
    if dtype == "bfloat16":
        return ": use --dtype float16"
    if dtype.startswith("float8"):
        return ": use --dtype bfloat16 (tunan convert dequantises)"
    return ": compute in float32" if dtype == "float64" else ""


def _base(operator: str) -> str:
    """An operator's name without overload, the in-place one's as its sibling's."""
    name = operator.partition(".")[0]
    if name in kernel_dtypes():
        return name
    return name.removesuffix("_")


def _dtypes(operands: "Iterable[Operand]") -> list[str]:
    return [operand.dtype for operand in operands]
