"""What is in vLLM's registries after its plugins are loaded. Runs in a vLLM process."""

from pathlib import Path
from typing import Any

import torch

from tests.engine.cpu.runs import record_log


def look(question: dict[str, Any]) -> dict[str, Any]:
    """{"library"?: a path instead of the kernels' own} -> the classes that come first, by
    registry, and what Tunan said."""
    logged = record_log()
    if "library" in question:
        from tunan.kernels import library

        library.LIBRARY = Path(question["library"])

    import vllm.model_executor.kernels.linear as kernels
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.models import ModelRegistry
    from vllm.platforms.interface import PlatformEnum
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from tunan.engine import register

    load_general_plugins()
    register()  # as vLLM may: what is there already stays as it is
    tables = (kernels._POSSIBLE_INT8_KERNELS, kernels._POSSIBLE_KERNELS)
    listed = [[kernel.__name__ for kernel in table[PlatformEnum.CPU]] for table in tables]
    return {
        "int8": listed[0],
        "mp": listed[1],
        "attention": AttentionBackendEnum.CPU_ATTN.get_path(),
        "latent": [
            getattr(AttentionBackendEnum, name).get_path()
            for name in ("CPU_MLA", "AMX_MLA")
            if hasattr(AttentionBackendEnum, name)
        ],
        "experts": getattr(op_registry_oot.get("RoutedExperts"), "__module__", None),
        "models": [
            ModelRegistry.models[name].module_name
            for name in (
                "LlamaForCausalLM",
                "Qwen2ForCausalLM",
                "DeepseekV2ForCausalLM",
                "DeepseekV3ForCausalLM",
            )
        ],
        "log": logged,
    }


def linear_refusals(_: None) -> dict[str, Any]:
    """What our linear kernels leave to vLLM's, each asked twice; and what was logged of it."""
    import vllm.v1.worker.cpu_worker  # noqa: F401  # prepares torch for a machine without GPU
    from vllm.model_executor.kernels.linear import (
        Int8ScaledMMLinearLayerConfig,
        MPLinearLayerConfig,
    )
    from vllm.scalar_type import scalar_types

    from tunan.engine.cpu.linear import CpuInt8LinearKernel, CpuW4A8LinearKernel

    logged = record_log()
    static = {"is_static_input_scheme": True, "is_channelwise": True, "input_symmetric": True}
    asymmetric = static | {"is_static_input_scheme": False, "input_symmetric": False}
    per_tensor = static | {"is_static_input_scheme": False, "is_channelwise": False}
    covered = static | {"is_static_input_scheme": False}
    shape = {"full_weight_shape": (512, 64), "partition_weight_shape": (512, 64)}
    group = {"act_type": torch.bfloat16, "zero_points": False, "weight_type": scalar_types.int4}
    odd, good = shape | group | {"group_size": 256}, shape | group | {"group_size": 32}
    other = good | {"weight_type": scalar_types.uint4b8}
    said: dict[str, Any] = {}
    for _twice in range(2):
        for name, int8 in (
            ("covered", covered),
            ("static", static),
            ("asymmetric", asymmetric),
            ("per tensor", per_tensor),
        ):
            said[name] = CpuInt8LinearKernel.can_implement(Int8ScaledMMLinearLayerConfig(**int8))
        for name, mixed in (("w4a8", good), ("large groups", odd), ("w4a16", other)):
            said[name] = CpuW4A8LinearKernel.can_implement(MPLinearLayerConfig(**mixed))
    return {"said": said, "log": logged}
