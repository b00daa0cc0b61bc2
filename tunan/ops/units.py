"""Which part of a model a traced operator belongs to, in the operator map's terms.

The map (`operators.yaml`) knows parts by vLLM's class names; a torch model is matched by what
its modules are called and made of, so that transformers' classes and a user's own fit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunan.ops.trace import Call

_ROUTERS = ("Router", "TopkRouter", "Gate", "MoEGate")
_LATENT = ("DeepseekV2", "DeepseekV3")
_SKIPPED = ("Identity", "Dropout", "SiLU", "SiLUActivation")


def unit_of(call: "Call") -> str:
    """The part's name in the operator map; empty for what belongs to none of them."""
    latent = any(name.startswith(_LATENT) for name in call.classes)
    if call.function or any("RotaryEmbedding" in name for name in call.classes[:1]):
        return "DeepseekScalingRotaryEmbedding" if latent else "RotaryEmbedding"
    if call.operator.startswith("aten::scaled_dot_product_attention"):
        return "MultiHeadLatentAttentionWrapper" if latent else "Attention"
    return _by_class([name for name in call.classes if name not in _SKIPPED], call)


def _by_class(classes: Sequence[str], call: "Call") -> str:
    inner = classes[0] if classes else ""
    if inner.endswith("RMSNorm"):
        return "RMSNorm"
    if inner.endswith("Experts"):
        return "FusedMoE"
    if inner.endswith(_ROUTERS):
        return "FusedMoE (routing)"
    if inner == "SwiGLU" or (inner.endswith("MLP") and _is_elementwise(call)):
        return "SiluAndMul"
    return _PLAIN.get(inner, "")


_PLAIN = {
    "LayerNorm": "LayerNorm",
    "Linear": "ReplicatedLinear",
    "Embedding": "VocabParallelEmbedding",
    "QuickGELUActivation": "QuickGELU",
}


def _is_elementwise(call: "Call") -> bool:
    return call.operator.partition("::")[2].partition(".")[0] in ("silu", "mul")
