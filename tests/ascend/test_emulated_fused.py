"""Fused operators of quantised weights, caches and experts on the device."""

import importlib
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.ascend

attention = torch.nn.functional.scaled_dot_product_attention

# Imported when the tests run: collecting them needs no device.
torch_npu: Any = None


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    global torch_npu
    torch_npu = importlib.import_module("torch_npu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def random(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1))


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-3) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


def near(actual: torch.Tensor, expected: torch.Tensor, share: float) -> None:
    """The error's norm is at most so large a share of the expected values'."""
    assert (actual.cpu().float() - expected).norm() <= share * expected.norm()


def rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x).clamp(-128, 127).to(torch.int8)


def norm(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * gamma.float()


@pytest.mark.parametrize("offset", [None, 3.0])
def test_npu_quantize_multiplies_by_the_reciprocal_of_a_step(offset: float | None) -> None:
    x, scale = random(4, 32, dtype=torch.float32), torch.full((1,), 20.0)
    shift = None if offset is None else torch.tensor([offset]).to("npu")
    y = torch_npu.npu_quantize(x.to("npu"), scale.to("npu"), shift, torch.qint8, -1, False)
    assert torch.equal(y.cpu(), rounded(x * 20 + (offset or 0)))


@pytest.mark.parametrize("axis", [0, 1])
def test_npu_quantize_divides_along_an_axis(axis: int) -> None:
    x = random(4, 32, dtype=torch.float32)
    scale, zero = torch.rand(x.shape[axis]) + 0.1, integers(-5, 5, x.shape[axis]).to(torch.int32)
    y = torch_npu.npu_quantize(
        x.to("npu"), scale.to("npu"), zero.to("npu"), torch.qint8, axis, True
    )
    shape = (-1, 1) if axis == 0 else (1, -1)
    assert torch.equal(y.cpu(), rounded(x / scale.view(shape) + zero.view(shape)))


def test_npu_anti_quant_is_the_way_back() -> None:
    x = integers(-128, 128, 4, 32).to(torch.int8)
    y = torch_npu.npu_anti_quant(
        x.to("npu"),
        torch.tensor([0.5]).to("npu"),
        offset=torch.tensor([2.0]).to("npu"),
        dst_dtype=torch.half,
    )
    assert torch.equal(y.cpu(), ((x.float() + 2) * 0.5).half())


def test_four_bit_numbers_survive_packing() -> None:
    weight = integers(-8, 8, 64, 32).to(torch.int32)
    packed = torch_npu.npu_convert_weight_to_int4pack(weight.to("npu"))
    assert packed.shape == (64, 4)
    y = torch_npu.npu_anti_quant(packed, torch.ones(1).to("npu"), dst_dtype=torch.half)
    assert torch.equal(y.cpu(), weight.half())


@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_weight_multiplies_as_the_real_one(bits: int, group: int) -> None:
    x, top = random(5, 64), 1 << (bits - 1)
    weight = integers(-top, top, 64, 48)
    scale = (torch.rand((2, 48) if group else (48,)) + 0.1).half() / 16
    offset = integers(-2, 3, *scale.shape).half()
    steps, zero = (
        t.float().repeat_interleave(32, 0) if group else t.float() for t in (scale, offset)
    )
    stored = weight.to(torch.int8).to("npu")
    if bits == 4:
        stored = torch_npu.npu_convert_weight_to_int4pack(weight.to(torch.int32).to("npu"))
    y = torch_npu.npu_weight_quant_batchmatmul(
        x.to("npu"),
        stored,
        scale.to("npu"),
        antiquant_offset=offset.to("npu"),
        antiquant_group_size=group,
    )
    close(y, (x.float() @ ((weight.float() + zero) * steps)).half(), 1e-2)


@pytest.mark.parametrize("form", ["int32", "int8", "int8 offset", "bias", "float bias", "no token"])
def test_an_eight_bit_product_in_every_form(form: str) -> None:
    x, weight = integers(-128, 128, 5, 64).to(torch.int8), integers(-128, 128, 64, 32)
    sums = (x.double() @ weight.double()).float()
    scale = torch.rand(32) * 1e-3 + 1e-4
    call: dict[str, Any] = {"output_dtype": torch.float16}
    expected = (sums * scale).half()
    if form == "int32":
        call, expected = {"output_dtype": torch.int32}, sums.to(torch.int32)
    if form.startswith("int8"):
        call, expected = {"output_dtype": torch.int8}, rounded(sums * scale)
    if form == "int8 offset":
        offset = integers(-20, 20, 32).float()
        call["offset"], expected = offset.to("npu"), rounded(sums * scale + offset)
    if form == "bias":
        bias = integers(-1000, 1000, 32).to(torch.int32)
        call["bias"], expected = bias.to("npu"), ((sums + bias) * scale).half()
    if form == "float bias":
        bias, token = random(32, dtype=torch.bfloat16), torch.rand(5)
        call = {
            "bias": bias.to("npu"),
            "output_dtype": torch.bfloat16,
            "pertoken_scale": token.to("npu"),
        }
        expected = (sums * scale * token[:, None] + bias).bfloat16()
    product = torch_npu.npu_quant_matmul(
        x.to("npu"), weight.to(torch.int8).to("npu"), scale.to("npu"), **call
    )
    close(product, expected, 1e-2)


def test_a_norm_that_quantises_with_a_fixed_step() -> None:
    x, residual, gamma = random(3, 64), random(3, 64, seed=1), random(64, seed=2)
    scale, zero = torch.full((64,), 0.05), integers(-3, 4, 64).to(torch.int32)
    y, _, total = torch_npu.npu_add_rms_norm_quant(
        x.to("npu"),
        residual.to("npu"),
        gamma.to("npu"),
        scale.half().to("npu"),
        zero.to("npu"),
        epsilon=1e-6,
    )
    expected = norm(x + residual, gamma) / scale.half().float() + zero
    assert torch.equal(total.cpu(), x + residual)
    assert (y.cpu().int() - rounded(expected).int()).abs().max() <= 1


def test_a_norm_that_quantises_each_row() -> None:
    x, residual, gamma = random(3, 64), random(3, 64, seed=1), random(64, seed=2)
    y, _, total, scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(
        x.to("npu"), residual.to("npu"), gamma.to("npu"), epsilon=1e-6
    )
    expected = norm(x + residual, gamma)
    assert torch.equal(total.cpu(), x + residual)
    close(scale, expected.abs().amax(-1) / 127)
    near(y.cpu() * scale.cpu()[:, None], expected, 0.02)


def test_a_gate_on_eight_bit_sums_gives_eight_bits() -> None:
    sums, weight, token = integers(-9999, 9999, 5, 64), torch.rand(2, 64) * 1e-3, torch.rand(5)
    counts, owners = torch.tensor([2, 3]), torch.tensor([0, 0, 1, 1, 1])
    y, scale = torch_npu.npu_dequant_swiglu_quant(
        sums.to(torch.int32).to("npu"),
        weight_scale=weight.to("npu"),
        activation_scale=token.to("npu"),
        group_index=counts.to("npu"),
        activate_left=True,
        quant_mode=1,
    )
    left, right = (sums * weight[owners] * token[:, None]).chunk(2, -1)
    expected = torch.nn.functional.silu(left) * right
    close(scale, expected.abs().amax(-1) / 127)
    near(y.cpu() * scale.cpu()[:, None], expected, 0.02)


def test_eight_bit_experts_are_near_a_float_reference() -> None:
    """Rows of three experts: int8 product, SwiGLU, int8 again; and the plain grouped product."""
    counts = torch.tensor([3, 0, 4])
    real, weight = random(7, 32, dtype=torch.float32), random(3, 32, 64, dtype=torch.float32)
    scale = weight.abs().amax(1) / 127
    stored = torch.round(weight / scale[:, None]).to(torch.int8)
    rows, token = torch_npu.npu_dynamic_quant(real.bfloat16().to("npu"))
    parts = torch.tensor_split(real, counts.cumsum(0)[:-1].tolist())
    expected = torch.cat([a @ b for a, b in zip(parts, weight, strict=True)])
    (product,) = torch_npu.npu_grouped_matmul(
        [rows],
        [stored.to("npu")],
        scale=[scale.bfloat16().to("npu")],
        per_token_scale=[token],
        group_list=counts.cumsum(0).to("npu"),
        split_item=2,
        group_type=0,
        output_dtype=torch.bfloat16,
    )
    near(product, expected, 0.02)
    y, step, _ = torch_npu.npu_grouped_matmul_swiglu_quant(
        rows,
        torch_npu.npu_format_cast(stored.to("npu"), 29),
        counts.cumsum(0).to("npu"),
        scale.to("npu"),
        token,
    )
    left, right = expected.chunk(2, -1)
    gated = torch.nn.functional.silu(left) * right
    near(y.cpu() * step.cpu()[:, None], gated, 0.03)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_attention_over_sequences_one_after_another(heads: tuple[int, int]) -> None:
    query = random(9, heads[0], 16, dtype=torch.float32)
    key, value = (random(9, heads[1], 16, dtype=torch.float32, seed=s) for s in (1, 2))
    ends = [4, 9]
    out = torch_npu.npu_fusion_attention(
        query.to("npu"),
        key.to("npu"),
        value.to("npu"),
        heads[0],
        "TND",
        scale=0.25,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        sparse_mode=3,
        atten_mask=torch.ones(2048, 2048).triu(1).bool().to("npu"),
    )
    expected = torch.cat(
        [causal(*(t[a:b] for t in (query, key, value))) for a, b in ((0, 4), (4, 9))]
    )
    close(out[0], expected, 1e-4)


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    spread = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(spread, 1).transpose(0, 1) for t in (key, value))
    out = attention(query.transpose(0, 1), key, value, is_causal=True, scale=0.25)
    return out.transpose(0, 1)


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_attention_in_every_dense_layout(layout: str) -> None:
    tensors = [random(2, 4, 5, 16, dtype=torch.float32, seed=s) for s in range(3)]
    expected = attention(tensors[0], tensors[1], tensors[2], scale=0.25)

    def laid(x: torch.Tensor) -> torch.Tensor:
        if layout == "BNSD":
            return x
        x = x.transpose(1, 2)
        x = x if layout == "BSND" else x.flatten(2)
        return x.transpose(0, 1).contiguous() if layout == "SBH" else x.contiguous()

    query, key, value = (laid(x).to("npu") for x in tensors)
    out = torch_npu.npu_fusion_attention(query, key, value, 4, layout, scale=0.25)
    close(out[0], laid(expected), 1e-4)


def test_an_eight_bit_cache_in_the_matrix_unit_s_layout_serves_attention() -> None:
    """Static scales a channel, [blocks, heads, D/32, block, 32]: vllm-ascend's C8."""
    blocks, block, heads, size, length = 4, 32, 2, 64, 40
    key, value = (random(length, heads, size, seed=s) for s in (1, 2))
    scale = key.float().abs().amax(0) / 127, value.float().abs().amax(0) / 127
    eight = [rounded(x / s) for x, s in zip((key, value), scale, strict=True)]
    caches = [
        torch.zeros(blocks, heads, size // 32, block, 32, dtype=torch.int8).to("npu") for _ in eight
    ]
    slots = torch.arange(length) + block  # the first block is another's
    torch_npu.npu_scatter_pa_kv_cache(
        key=eight[0].to("npu"),
        value=eight[1].to("npu"),
        key_cache=caches[0],
        value_cache=caches[1],
        slot_mapping=slots.to(torch.int32).to("npu"),
    )
    query = random(1, 4, 1, size)
    out, _ = torch_npu.npu_fused_infer_attention_score(
        query.to("npu"),
        *caches,
        key_antiquant_scale=scale[0].half().view(heads, 1, size).to("npu"),
        value_antiquant_scale=scale[1].half().view(heads, 1, size).to("npu"),
        block_table=torch.tensor([[1, 2]], dtype=torch.int32).to("npu"),
        actual_seq_lengths_kv=[length],
        num_heads=4,
        num_key_value_heads=heads,
        input_layout="BNSD",
        scale=0.125,
        block_size=block,
        antiquant_mode=0,
        key_antiquant_mode=0,
        value_antiquant_mode=0,
        inner_precise=1,
        sparse_mode=0,
    )
    real = [(x * s.half()).float() for x, s in zip(eight, scale, strict=True)]
    wide = [x.repeat_interleave(2, 1).transpose(0, 1)[None] for x in real]
    expected = attention(query.float(), wide[0], wide[1], scale=0.125)
    close(out, expected.half(), 5e-3)


@pytest.mark.parametrize("mode", ["PA", "PA_NZ"])
def test_a_latent_row_is_normalised_rotated_and_cached(mode: str) -> None:
    rank, rope, block = 32, 16, 16
    kv, gamma = random(3, 1, 1, rank + rope), random(rank, seed=1)
    angles = torch.rand(3, 1, 1, rope // 2).repeat(1, 1, 1, 2)
    caches = [
        torch.zeros(2, block, 1, width, dtype=torch.float16).to("npu") for width in (rope, rank)
    ]
    slots = torch.tensor([17, -1, 2])
    torch_npu.npu_kv_rmsnorm_rope_cache(
        kv.to("npu"),
        gamma.to("npu"),
        angles.cos().half().to("npu"),
        angles.sin().half().to("npu"),
        slots.to("npu"),
        *caches,
        epsilon=1e-6,
        cache_mode=mode,
    )
    latent = norm(kv[..., :rank], gamma)[:, 0, 0].half()
    stored = caches[1].cpu()
    if mode == "PA_NZ":
        stored = stored.view(2, rank // 16, block, 16).transpose(1, 2).reshape(2, block, 1, rank)
    rows = stored.view(-1, rank)
    close(rows[17], latent[0])
    close(rows[2], latent[2])
    assert rows.abs().sum(-1).count_nonzero() == 2


def test_experts_chosen_by_softmax_are_sorted_and_summed_again() -> None:
    x, logits = random(6, 16), random(6, 4, dtype=torch.float32)
    weight, experts, numbers = torch_npu.npu_moe_gating_top_k_softmax(logits.to("npu"), None, k=2)
    best = torch.softmax(logits, -1).topk(2)
    assert torch.equal(experts.cpu().long(), best.indices)
    close(weight, best.values)
    rows, places, sorted_experts = torch_npu.npu_moe_init_routing(
        x.to("npu"), row_idx=numbers, expert_idx=experts, active_num=6
    )
    totals = torch_npu.npu_moe_compute_expert_tokens(sorted_experts, 4)
    assert (
        totals.cpu().tolist()
        == torch.bincount(best.indices.flatten(), minlength=4).cumsum(0).tolist()
    )
    back = torch_npu.npu_moe_finalize_routing(
        rows, None, None, None, weight.half(), places, experts, drop_pad_mode=0
    )
    close(back, (x.float() * best.values.sum(-1, keepdim=True)).half())


def test_a_histogram_is_that_of_the_cpu() -> None:
    x = random(100, dtype=torch.float32)
    close(torch.histc(x.to("npu"), bins=8, min=-2, max=2), torch.histc(x, bins=8, min=-2, max=2))


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_queries_and_keys_are_rotated_in_place(mode: str) -> None:
    query, key = random(2, 3, 4, 32, dtype=torch.float32), random(2, 3, 1, 32, dtype=torch.float32)
    angles = torch.rand(2, 3, 1, 16)
    angles = angles.repeat_interleave(2, -1) if mode == "interleave" else angles.repeat(1, 1, 1, 2)
    out = torch_npu.npu_apply_rotary_pos_emb(
        query.to("npu"), key.to("npu"), angles.cos().to("npu"), angles.sin().to("npu"), "BSND", mode
    )
    for actual, x in zip(out, (query, key), strict=True):
        if mode == "half":
            left, right = x.chunk(2, -1)
            turned = torch.cat((-right, left), -1)
        else:
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        close(actual, x * angles.cos() + turned * angles.sin(), 1e-5)
