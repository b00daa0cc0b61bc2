"""Puts the CPU kernels into vLLM's registries: linear kernels, experts, attention, model classes.

Checked against vLLM 0.32.0 and 0.23.0. What a version lacks is left out: 0.23 has no hook
for a KV cache of another size, so there only the linear kernels are registered.
"""

from typing import Any

from tunan.engine.cpu.amx import ask_for_tiles
from tunan.engine.cpu.switch import Switch

ATTENTION_BACKEND = "tunan.engine.cpu.attention.CpuAttentionBackend"
ATTENTION_BACKENDS = {
    "CPU_ATTN": ATTENTION_BACKEND,
    "CPU_MLA": "tunan.engine.cpu.mla.CpuMlaBackend",
    "AMX_MLA": "tunan.engine.cpu.mla.AmxMlaBackend",
}
MODELS = {
    "DeepseekV2ForCausalLM": "tunan.engine.cpu.models:DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM": "tunan.engine.cpu.models:DeepseekV3ForCausalLM",
    "LlamaForCausalLM": "tunan.engine.cpu.models:LlamaForCausalLM",
    "Qwen2ForCausalLM": "tunan.engine.cpu.models:Qwen2ForCausalLM",
}


def register() -> None:
    """Registers what the switch asks for, once. Logs one line if there are no kernels.

    The attention backends are registered whatever the switch says: with their part off they run
    vLLM's kernels, and say what is wrong with an int8 KV cache, which vLLM's take for fp8.
    Raises UsageError for a `TUNAN_CPU_KERNELS` that means nothing.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    ask_for_tiles()
    from tunan.engine.cpu.log import logger
    from tunan.kernels import unavailable_reason

    switch = Switch.from_environment()
    reason = unavailable_reason()
    if reason is not None and switch != Switch.none():
        logger.warning("tunan: vLLM's own CPU kernels are used: %s", reason)
        switch = Switch.none()
    try:
        if _has_cache_hooks():
            _register_attention()
        if switch.linear:
            _register_linear_kernels()
            _register_experts()
        if switch.fused and _has_cache_hooks():
            _register_models()
    except (ImportError, AttributeError) as error:
        logger.warning("tunan: vLLM's own CPU kernels are used: this version's differ (%s)", error)


def _register_linear_kernels() -> None:
    import vllm.model_executor.kernels.linear as kernels
    from vllm.platforms.interface import PlatformEnum

    from tunan.engine.cpu.linear import CpuInt8LinearKernel, CpuW4A8LinearKernel

    for kind, kernel, table in (
        ("int8", CpuInt8LinearKernel, kernels._POSSIBLE_INT8_KERNELS),
        ("mp", CpuW4A8LinearKernel, kernels._POSSIBLE_KERNELS),
    ):
        known: list[Any] = table.setdefault(PlatformEnum.CPU, [])
        if kernel not in known:
            kernels.register_linear_kernel(kernel, PlatformEnum.CPU, kind)
            # vLLM takes the first that can, and appends what is registered: its own would
            # always win, and disabling it would leave nothing for what ours does not cover.
            known.insert(0, known.pop())


def _register_experts() -> None:
    try:
        from vllm.model_executor.custom_op import op_registry_oot
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    except ImportError:  # 0.23, where the layer cannot be replaced
        return
    from tunan.engine.cpu.routed_experts import CpuRoutedExperts

    # One that another plugin has put there stays.
    if RoutedExperts.__name__ not in op_registry_oot:
        RoutedExperts.register_oot(CpuRoutedExperts)


def _has_cache_hooks() -> bool:
    from vllm.v1.attention.backend import AttentionBackend

    return hasattr(AttentionBackend, "customize_spec")


def _register_attention() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    for name, path in ATTENTION_BACKENDS.items():
        backend = getattr(AttentionBackendEnum, name)
        if backend.get_path() != path:
            register_backend(backend, path)


def _register_models() -> None:
    from vllm.model_executor.models import ModelRegistry

    for architecture, path in MODELS.items():
        if not _is_ours(ModelRegistry.models.get(architecture)):
            ModelRegistry.register_model(architecture, path)


def _is_ours(registered: Any) -> bool:
    """Whether a registered model is ours, by name or (fast_start.py) imported already."""
    imported = getattr(registered, "model_cls", None)
    module = getattr(imported, "__module__", getattr(registered, "module_name", ""))
    return str(module).startswith("tunan.")
