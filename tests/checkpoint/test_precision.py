"""Which number format a tensor is written in."""

import pytest
import torch

from tunan.checkpoint.precision import FLOATS, ITEM_BYTES, PRECISIONS, torch_dtype, written_dtype

BIAS = "model.layers.3.mlp.gate.e_score_correction_bias"


@pytest.mark.parametrize("stored", FLOATS)
def test_floats_take_the_precision_asked_for(stored: str) -> None:
    assert written_dtype("model.norm.weight", stored, PRECISIONS["float16"]) == "F16"


@pytest.mark.parametrize("stored", ["I64", "U8", "BOOL"])
def test_anything_else_stays_as_it_is(stored: str) -> None:
    assert written_dtype("model.norm.weight", stored, PRECISIONS["float16"]) == stored


def test_the_router_bias_keeps_float32_but_is_not_widened() -> None:
    assert written_dtype(BIAS, "F32", PRECISIONS["bfloat16"]) == "F32"
    assert written_dtype(BIAS, "BF16", PRECISIONS["bfloat16"]) == "BF16"


def test_the_norm_of_the_indexers_keys_keeps_float32() -> None:
    for leaf in ("weight", "bias"):
        name = f"model.layers.0.self_attn.indexer.k_norm.{leaf}"
        assert written_dtype(name, "F32", PRECISIONS["bfloat16"]) == "F32"


def test_transformers_keeps_the_same_tensors_in_float32() -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3PreTrainedModel

    assert "e_score_correction_bias" in DeepseekV3PreTrainedModel._keep_in_fp32_modules_strict


@pytest.mark.parametrize("code", list(ITEM_BYTES))
def test_sizes_are_those_of_torch(code: str) -> None:
    assert torch.empty(1, dtype=torch_dtype(code)).element_size() == ITEM_BYTES[code]
