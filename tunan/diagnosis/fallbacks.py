"""What to use instead of an operator that the device lacks."""

import re
from collections.abc import Mapping

from tunan.diagnosis.entry import Text

# Operators that a fused kernel of torch_npu replaces as a part of a whole, by the part's name in
# tunan.ops.replace; and those that another dtype or form gives a kernel.
_PARTS: Mapping[str, str] = {
    "rms_norm": "npu_rms_norm",
    "_fused_rms_norm": "npu_rms_norm",
    "rotary": "npu_rotary_mul",
    "rope": "npu_rotary_mul",
    "gelu": "npu_gelu",
}
_NATIVE = Text(
    en="no fused kernel is known for it: write it with operators that have a kernel "
    "(`tunan ops audit` lists them), or take it out of the decoding loop",
    zh="没有已知的融合内核：改用有内核的算子来写（`tunan ops audit` 会列出），或移出解码循环",
)
_TWIN: Mapping[str, tuple[str, str]] = {
    "fmax": ("torch.maximum", "NaN"),
    "fmin": ("torch.minimum", "NaN"),
}


def replacement_of(operator: str) -> Text:
    """For `aten::fmax.out` and the like, what to write or to call instead."""
    name = re.sub(r"^\w+::|\.\w+$", "", operator).rstrip("_")
    if name in _TWIN:
        twin, differs = _TWIN[name]
        return Text(
            en=f"{twin}, which has a kernel; they differ where a value is {differs}",
            zh=f"{twin} 有内核；仅在取值为 {differs} 时结果不同",
        )
    for part, kernel in _PARTS.items():
        if part in name:
            return Text(
                en=f"tunan.ops.replace(model, 'npu') puts {kernel} in its place",
                zh=f"tunan.ops.replace(model, 'npu') 会换成 {kernel}",
            )
    return _NATIVE
