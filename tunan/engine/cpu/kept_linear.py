"""Linear layers of DeepSeek that `tunan convert` leaves unquantised, through our kernel.

vLLM packs such weights for a kernel of its own and drops them. Fused layers need them as they are,
and a kernel whose sums do not depend on how many rows are asked for.
"""

from typing import Any

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod

from tunan.engine.cpu.linear import PackingKernel
from tunan.kernels.dense import dense

# To the latents, and the router.
NAMES = ("fused_qkv_a_proj", "kv_a_proj_with_mqa", "gate")


class KeptLinearMethod(UnquantizedLinearMethod):  # type: ignore[misc]
    """vLLM's, but that the weight stays a parameter and our kernel multiplies by it."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Leaves everything as it was loaded."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if torch.compiler.is_compiling() or bias is not None:
            return torch.nn.functional.linear(x, layer.weight, bias)
        return dense(x, layer.weight)


def keep(model: Any, dtype: torch.dtype) -> None:
    """Gives the layers of these names the method above, in a model with layers that we pack."""
    if dtype not in (torch.bfloat16, torch.float32) or not _has_packed_layers(model):
        return
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if name.rsplit(".", 1)[-1] in NAMES and type(method) is UnquantizedLinearMethod:
            module.quant_method = KeptLinearMethod()


def _has_packed_layers(model: Any) -> bool:
    return any(
        isinstance(getattr(getattr(module, "scheme", None), "kernel", None), PackingKernel)
        for module in model.modules()
    )
