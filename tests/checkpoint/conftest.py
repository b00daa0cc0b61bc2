"""Configurations of small models of each family."""

from typing import Any

import pytest

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 200,
}
_MOE = _LLAMA | {
    "architectures": ["DeepseekForCausalLM"],
    "num_key_value_heads": 8,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
}
_V3 = _MOE | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "topk_method": "noaux_tc",
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "num_nextn_predict_layers": 1,
}


@pytest.fixture
def llama() -> dict[str, Any]:
    return dict(_LLAMA)


@pytest.fixture
def moe() -> dict[str, Any]:
    return dict(_MOE)


@pytest.fixture
def v3() -> dict[str, Any]:
    return dict(_V3)


@pytest.fixture
def v32() -> dict[str, Any]:
    indexer = {"index_n_heads": 4, "index_head_dim": 8, "index_topk": 16}
    return _V3 | {"architectures": ["DeepseekV32ForCausalLM"]} | indexer
