"""vLLM's layer of routed experts, replaced through its registry of out-of-tree layers.

The methods it may choose (`moe.py`) are imported only for a checkpoint in compressed-tensors: this
file is imported at every start.
"""

from typing import Any

from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from tunan.engine.cpu.compiled import refuse_compiled_experts
from tunan.engine.cpu.registration import MODELS
from tunan.engine.cpu.switch import Switch


class CpuRoutedExperts(RoutedExperts):  # type: ignore[misc]
    """vLLM's, but for the quantisation method, which is ours where our kernel covers it."""

    def _get_quant_method(self, prefix: str, quant_config: Any, moe_config: Any) -> Any:
        if quant_config is not None and quant_config.get_name() == "compressed-tensors":
            from tunan.engine.cpu.moe import method_for

            ours = method_for(self, prefix, quant_config, moe_config)
            if ours is not None:
                _refuse_if_never_fused()
                return ours
        return super()._get_quant_method(prefix, quant_config, moe_config)


def _refuse_if_never_fused() -> None:
    """Raises `UsageError`; of a model whose layers may be fused, `models.py` decides."""
    config = get_current_vllm_config()
    fusible = any(name in MODELS for name in config.model_config.architectures)
    if not (fusible and Switch.from_environment().fused):
        refuse_compiled_experts(config, "decoder layers are vLLM's own")
