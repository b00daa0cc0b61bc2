"""Everything Tunan imports from inside vLLM for loading, and where the versions differ.

Checked against vLLM 0.32.0 (CPU) and 0.23.0 (vllm-ascend): `tests/engine/test_compat.py`
holds the sources of both against the names and parameters used here.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

LOAD_FORMAT = "tunan"


def register_once() -> None:
    """Registers `--load-format tunan`, unless this process has it already."""
    from vllm.logger import init_logger

    logger = init_logger(__name__)
    try:
        from vllm.model_executor.model_loader import get_model_loader, register_model_loader

        from tunan.engine.loader import LazyWeightLoader
    except ImportError as error:
        logger.warning("tunan: load format '%s' is not available: %s", LOAD_FORMAT, error)
        return
    registered = getattr(get_model_loader, "__globals__", {}).get(_REGISTRY, {})
    if registered.get(LOAD_FORMAT) is not LazyWeightLoader:
        register_model_loader(LOAD_FORMAT)(LazyWeightLoader)


# Read only to ask whether the format is there already: registering twice logs a warning.
_REGISTRY = "_LOAD_FORMAT_TO_MODEL_LOADER"


def missing_layer_types() -> tuple[type["nn.Module"], ...]:
    """The placeholders for what another pipeline stage or an unused modality holds."""
    from vllm.model_executor.models.utils import PPMissingLayer, StageMissingLayer

    return (PPMissingLayer, StageMissingLayer)


def unquantised_methods() -> tuple[type[Any], ...]:
    """Quantisation methods of plain linear and expert layers."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
    )
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    return (UnquantizedLinearMethod, UnquantizedFusedMoEMethod)


def tensor_parallel() -> tuple[int, int]:
    """(degree, this process's rank)."""
    from vllm.distributed.parallel_state import (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )

    return get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()


def local_experts(vllm_config: Any) -> set[int] | None:
    """The routed experts this process holds; None if all, or if that is not fixed.

    vLLM's own rule (`DefaultModelLoader._init_ep_weight_filter`): with expert-parallel load
    balancing every process may come to need any expert.
    """
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    if not parallel.enable_expert_parallel or parallel.enable_eplb or not model.is_moe:
        return None
    from vllm.distributed.parallel_state import get_dp_group, get_pcp_group
    from vllm.model_executor.model_loader.ep_weight_filter import compute_local_expert_ids

    degree, rank = tensor_parallel()
    data, context = parallel.data_parallel_size, parallel.prefill_context_parallel_size
    data_rank = get_dp_group().rank_in_group if data > 1 else 0
    context_rank = get_pcp_group().rank_in_group if context > 1 else 0
    experts: set[int] | None = compute_local_expert_ids(
        model.get_num_experts(),
        data * context * degree,
        (data_rank * context + context_rank) * degree + rank,
        placement=parallel.expert_placement_strategy,
    )
    return experts


def is_cpu() -> bool:
    """Whether vLLM runs on its CPU platform, which repacks plain weights."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def input_embeddings(model: "nn.Module") -> list[Any]:
    """Embeddings that are only indexed, because the model multiplies by a head of its own."""
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    modules = list(model.modules())
    elsewhere = isinstance(getattr(model, "lm_head", None), missing_layer_types())
    if not elsewhere and not any(isinstance(module, ParallelLMHead) for module in modules):
        return []
    return [module for module in modules if type(module) is VocabParallelEmbedding]


def unties_embedding(model_config: Any) -> bool:
    """Whether vLLM (0.32) is yet to compare embedding and head and may tie them again."""
    return bool(getattr(model_config, "word_embeddings_untied_by_checkpoint", False))


def parameters_as_stored(model: "nn.Module") -> dict[str, "nn.Parameter"]:
    """Parameters by the names rank blocks use, which are those of vLLM 0.23.

    vLLM 0.32 keeps the routed experts' weights one module further down; vllm-ascend 0.23 has
    zero points beside symmetric weights, which it neither loads nor reads.
    """
    return {
        name.replace(".experts.routed_experts.", ".experts."): parameter
        for name, parameter in model.named_parameters()
        if not name.endswith("weight_offset")
    }


_LEFT_AS_MADE = re.compile(r"weight_offset$|\.attn\.(q|k|v|prob)_(scale|zero_point)$")


def left_as_made(name: str) -> bool:
    """Whether a quantised model may have this parameter and the checkpoint not.

    vLLM gives attention the scales and zero points of a quantised cache, 1 and 0 unless loaded;
    vllm-ascend 0.23 gives every int8 weight an offset, which symmetric ones do not have.
    """
    return _LEFT_AS_MADE.search(name) is not None


def gumbel_argmax() -> "Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None":
    """vLLM 0.32's operator that draws on a CPU from logits, float32, and one int64 a row."""
    import torch

    return getattr(torch.ops._C, "fused_gumbel_argmax", None)
