"""Arguments that do not fit are refused before anything runs, by each operator, in CANN's words.

A case is a call that works. Each of its tensors is tried with another type, another number of
dimensions and another last dimension; no such call may get past the first phase.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.ascend

# Imported when the tests run: collecting them needs no device.
torch_npu: Any = None

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    global torch_npu
    torch_npu = importlib.import_module("torch_npu")


def real(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.rand(shape).to(dtype)


def eight(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int8)


def whole(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@dataclass(frozen=True)
class Case:
    """A working call: `run` with `tensors` (on the host); `accepts` are mutations that fit."""

    run: Callable[..., Any]
    tensors: Tensors
    accepts: frozenset[str] = frozenset()


def case(run: Callable[..., Any], *accepts: str, **tensors: torch.Tensor) -> Case:
    return Case(run, tensors, frozenset(accepts))


SINGLE = torch.float32
CASES: dict[str, Case] = {
    "Mm": case(torch.mm, "mat2 last", input=real(4, 8), mat2=real(8, 6)),
    "BatchMatMul": case(torch.bmm, "mat2 last", input=real(2, 4, 8), mat2=real(2, 8, 6)),
    "RmsNorm": case(
        lambda x, gamma: torch_npu.npu_rms_norm(x, gamma, 1e-6),
        "x rank",
        x=real(3, 8),
        gamma=real(8),
    ),
    "AddRmsNorm": case(
        lambda x1, x2, gamma: torch_npu.npu_add_rms_norm(x1, x2, gamma, 1e-6),
        x1=real(3, 8),
        x2=real(3, 8),
        gamma=real(8),
    ),
    "RotaryPositionEmbedding": case(
        lambda x, cos, sin: torch_npu.npu_rotary_mul(x, cos, sin),
        "cos dtype",  # torch_npu itself casts them to the type of x
        "sin dtype",
        x=real(1, 2, 3, 8),
        cos=real(1, 1, 3, 8),
        sin=real(1, 1, 3, 8),
    ),
    "InterleaveRope": case(
        lambda x, cos, sin: torch_npu.npu_interleave_rope(x, cos, sin),
        x=real(1, 2, 3, 8),
        cos=real(1, 1, 3, 8),
        sin=real(1, 1, 3, 8),
    ),
    "ApplyRotaryPosEmb": case(
        lambda query, key, cos, sin: torch_npu.npu_apply_rotary_pos_emb(query, key, cos, sin),
        query=real(1, 3, 2, 8),
        key=real(1, 3, 1, 8),
        cos=real(1, 3, 1, 8),
        sin=real(1, 3, 1, 8),
    ),
    "QuantMatmul": case(
        lambda x1, x2, scale, token: torch_npu.npu_quant_matmul(
            x1, x2, scale, pertoken_scale=token, output_dtype=torch.bfloat16
        ),
        "x1 rank",  # a batch
        "x2 rank",
        x1=eight(4, 16),
        x2=eight(16, 8),
        scale=real(8, dtype=SINGLE),
        token=real(4, dtype=SINGLE),
    ),
    "WeightQuantBatchMatmul": case(
        lambda x, weight, scale: torch_npu.npu_weight_quant_batchmatmul(x, weight, scale),
        "x rank",  # a batch
        "weight rank",
        "scale rank",
        x=real(4, 64),
        weight=eight(64, 8),
        scale=real(8),
    ),
    "GroupedMatmul": case(
        lambda x, weight, groups: torch_npu.npu_grouped_matmul(
            [x], [weight], group_list=groups, split_item=2, group_type=0
        ),
        "weight last",
        x=real(4, 8),
        weight=real(2, 8, 6),
        groups=torch.tensor([2, 4]),
    ),
    "GroupedMatmulSwigluQuant": case(
        lambda x, weight, groups, scale, token: torch_npu.npu_grouped_matmul_swiglu_quant(
            x, torch_npu.npu_format_cast(weight, 29), groups, scale, token
        ),
        x=eight(4, 32),
        weight=eight(2, 32, 64),
        groups=torch.tensor([2, 4]),
        scale=real(2, 64, dtype=SINGLE),
        token=real(4, dtype=SINGLE),
    ),
    "AddRmsNormDynamicQuant": case(
        lambda x1, x2, gamma: torch_npu.npu_add_rms_norm_dynamic_quant(x1, x2, gamma),
        x1=real(3, 8),
        x2=real(3, 8),
        gamma=real(8),
    ),
    "AddRmsNormQuant": case(
        lambda x1, x2, gamma, scale: torch_npu.npu_add_rms_norm_quant(x1, x2, gamma, scale, None),
        x1=real(3, 8),
        x2=real(3, 8),
        gamma=real(8),
        scale=real(8),
    ),
    "FusedInferAttentionScore": case(
        lambda query, key, value, table: torch_npu.npu_fused_infer_attention_score(
            query,
            key,
            value,
            block_table=table,
            actual_seq_lengths_kv=[5, 6],
            num_heads=4,
            num_key_value_heads=2,
            input_layout="BNSD",
            block_size=16,
        ),
        "table last",  # more pages than are used
        "query last",  # the head size of a paged cache is what is left of its width
        "key rank",
        "value rank",
        "key last",
        "value last",
        query=real(2, 4, 1, 8),
        key=real(3, 16, 16),
        value=real(3, 16, 16),
        table=whole(2, 1),
    ),
    "FlashAttention": case(
        lambda query, key, value: torch_npu.npu_fusion_attention(query, key, value, 4, "BNSD"),
        "value last",
        query=real(2, 4, 3, 8),
        key=real(2, 2, 5, 8),
        value=real(2, 2, 5, 8),
    ),
    "ScatterPaKvCache": case(
        lambda key, key_cache, slots: torch_npu.npu_scatter_pa_kv_cache(
            key=key,
            value=key.clone(),
            key_cache=key_cache,
            value_cache=key_cache.clone(),
            slot_mapping=slots,
            cache_mode="Norm",
        ),
        key=real(3, 2, 8),
        key_cache=real(4, 16, 2, 8),
        slots=whole(3),
    ),
    "MoeGatingTopK": case(
        lambda x, bias: torch_npu.npu_moe_gating_top_k(x, 2, bias=bias, norm_type=1),
        x=real(4, 8, dtype=SINGLE),
        bias=real(8, dtype=SINGLE),
    ),
    "MoeInitRouting": case(
        lambda x, experts: torch_npu.npu_moe_init_routing_v2(
            x,
            experts,
            active_num=8,
            expert_num=4,
            expert_capacity=-1,
            drop_pad_mode=0,
            expert_tokens_num_type=1,
            expert_tokens_num_flag=True,
            quant_mode=-1,
            active_expert_range=[0, 4],
            row_idx_type=0,
        ),
        "x last",
        "x dtype",
        "experts last",
        x=real(4, 8),
        experts=whole(4, 2),
    ),
    "MoeFinalizeRouting": case(
        lambda rows, scales, places: torch_npu.npu_moe_finalize_routing(
            rows, None, None, None, scales, places, None, drop_pad_mode=2
        ),
        "rows last",
        rows=real(8, 16),
        scales=real(4, 2),
        places=whole(8),
    ),
    "TopKTopP": case(
        lambda logits, p, k: torch_npu.npu_top_k_top_p(logits, p, k),
        "logits last",
        logits=real(3, 16, dtype=SINGLE),
        p=real(3, dtype=SINGLE),
        k=whole(3) + 1,
    ),
    "Gather": case(
        lambda x, index: torch.gather(x, 1, index),
        "x dtype",
        "x last",
        "index last",
        x=real(3, 8),
        index=whole(3, 2, dtype=torch.int64),
    ),
}


def mutations(tensors: Tensors) -> Iterator[tuple[str, Tensors]]:
    for name, x in tensors.items():
        yield f"{name} dtype", tensors | {name: x.to(torch.complex64)}
        yield f"{name} rank", tensors | {name: x.reshape(1, *x.shape)}
        yield f"{name} last", tensors | {name: torch.cat((x, x[..., :1]), -1).contiguous()}


def wrong() -> Iterator[Any]:
    for operator, one in CASES.items():
        for what, tensors in mutations(one.tensors):
            if what not in one.accepts:
                yield pytest.param(one, tensors, id=f"{operator}, {what}")


@pytest.mark.parametrize("operator", CASES)
def test_the_call_itself_works(operator: str) -> None:
    one = CASES[operator]
    one.run(*(x.to("npu") for x in one.tensors.values()))
    torch_npu.npu.synchronize()


@pytest.mark.parametrize(("one", "tensors"), list(wrong()))
def test_what_does_not_fit_is_refused_before_it_runs(one: Case, tensors: Tensors) -> None:
    arguments = [x.to("npu") for x in tensors.values()]
    with pytest.raises((RuntimeError, ValueError)) as raised:
        one.run(*arguments)
    # Refused by aclnn in its first phase or by torch_npu itself, never by a kernel that has begun.
    assert "507015" not in str(raised.value)
    torch_npu.npu.synchronize()
