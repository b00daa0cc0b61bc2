"""Eight-bit products, layouts and expert routing on the device, against plain arithmetic."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.ascend

# Imported when the tests run: collecting them needs no device.
torch_npu: Any = None


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    global torch_npu
    torch_npu = importlib.import_module("torch_npu")


FRACTAL_NZ = 29


@pytest.fixture(autouse=True)
def _internal_formats() -> Iterator[None]:
    torch_npu.npu.config.allow_internal_format = True
    yield
    torch_npu.npu.config.allow_internal_format = False


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def weights(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-127, 128, (rows, columns), dtype=torch.int8, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [(64, 96), (70, 50), (3, 40, 24)])
def test_a_tensor_survives_the_matrix_unit_s_layout(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = (random(*shape) * 50).to(dtype)
    stored = torch_npu.npu_format_cast(x.to("npu"), FRACTAL_NZ)
    assert torch_npu.get_npu_format(stored) == FRACTAL_NZ
    assert torch.equal(stored.cpu(), x)
    assert torch.equal(torch_npu.npu_format_cast(stored, 2).cpu(), x)


def test_a_weight_in_the_matrix_unit_s_layout_gives_the_same_product() -> None:
    x, weight = random(3, 70, dtype=torch.float16), random(50, 70, dtype=torch.float16)
    stored = torch_npu.npu_format_cast(weight.to("npu"), FRACTAL_NZ)
    product = torch.nn.functional.linear(x.to("npu"), stored)
    torch.testing.assert_close(product.cpu(), torch.nn.functional.linear(x, weight))


def test_each_row_is_quantised_by_its_largest_value() -> None:
    x = random(5, 64, dtype=torch.bfloat16)
    rows, scale = torch_npu.npu_dynamic_quant(x.to("npu"))
    expected = x.float().abs().amax(-1) / 127
    torch.testing.assert_close(scale.cpu(), expected)
    assert torch.equal(rows.cpu(), torch.round(x.float() / expected[:, None]).to(torch.int8))


@pytest.mark.parametrize("layout", [2, FRACTAL_NZ])
@pytest.mark.parametrize("transposed", [False, True])
def test_an_eight_bit_product_is_exact_before_it_is_rounded(layout: int, transposed: bool) -> None:
    weight, channel = weights(64, 96), torch.rand(96)
    rows, token = torch_npu.npu_dynamic_quant(random(5, 64, dtype=torch.bfloat16).to("npu"))
    stored = weight.t().contiguous() if transposed else weight
    on_device = torch_npu.npu_format_cast(stored.to("npu"), layout)
    product = torch_npu.npu_quant_matmul(
        rows,
        on_device.t() if transposed else on_device,
        channel.to("npu"),
        pertoken_scale=token,
        output_dtype=torch.bfloat16,
    )
    sums = (rows.cpu().double() @ weight.double()).float()
    assert torch.equal(product.cpu(), (sums * channel * token.cpu()[:, None]).to(torch.bfloat16))


def test_an_eight_bit_product_of_unequal_depth_is_refused() -> None:
    rows, token = torch_npu.npu_dynamic_quant(random(5, 64, dtype=torch.bfloat16).to("npu"))
    with pytest.raises(RuntimeError, match=r"k dim of x1\[64\] and that of x2\[60\]"):
        torch_npu.npu_quant_matmul(
            rows,
            weights(60, 96).to("npu"),
            torch.rand(96).to("npu"),
            pertoken_scale=token,
            output_dtype=torch.bfloat16,
        )


@pytest.mark.parametrize("list_type", [0, 1])
def test_each_expert_multiplies_its_own_rows(list_type: int) -> None:
    counts = torch.tensor([3, 0, 5, 2])
    x, experts = random(10, 32, dtype=torch.float16), random(4, 32, 16, dtype=torch.float16)
    listed = counts if list_type else counts.cumsum(0)
    (product,) = torch_npu.npu_grouped_matmul(
        [x.to("npu")],
        [experts.to("npu")],
        group_list=listed.to("npu"),
        split_item=2,
        group_type=0,
        group_list_type=list_type,
    )
    parts = torch.tensor_split(x, counts.cumsum(0)[:-1].tolist())
    expected = torch.cat([a @ b for a, b in zip(parts, experts, strict=True)])
    torch.testing.assert_close(product.cpu(), expected, rtol=2e-3, atol=2e-2)


def test_tokens_return_from_their_experts_to_their_places() -> None:
    x, logits = random(6, 16, dtype=torch.float16), random(6, 8)
    weight, chosen, _ = torch_npu.npu_moe_gating_top_k(logits.to("npu"), k=2, norm_type=0)
    best = torch.softmax(logits, -1).topk(2)
    assert torch.equal(chosen.cpu().long(), best.indices)
    torch.testing.assert_close(weight.cpu(), best.values)
    rows, places, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x.to("npu"),
        chosen,
        active_num=12,
        expert_num=8,
        expert_capacity=-1,
        drop_pad_mode=0,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=-1,
        active_expert_range=[0, 8],
        row_idx_type=0,
    )
    assert counts.cpu().tolist() == torch.bincount(best.indices.flatten(), minlength=8).tolist()
    half = torch.full((6, 2), 0.5, dtype=torch.float16).to("npu")
    back = torch_npu.npu_moe_token_unpermute(rows, places, probs=half)
    torch.testing.assert_close(back.cpu(), x, rtol=1e-3, atol=1e-3)


def test_groups_and_a_bias_decide_which_experts_are_chosen() -> None:
    logits, bias = random(5, 8), torch.linspace(-1, 1, 8)
    weight, chosen, _ = torch_npu.npu_moe_gating_top_k(
        logits.to("npu"),
        k=2,
        bias=bias.to("npu"),
        k_group=1,
        group_count=2,
        group_select_mode=1,
        norm_type=1,
        routed_scaling_factor=2.5,
    )
    scores = torch.sigmoid(logits)
    groups = (scores + bias).view(5, 2, 4)
    best = groups.topk(2, -1).values.sum(-1).argmax(-1)
    inside = groups[torch.arange(5), best].topk(2, -1).indices + best[:, None] * 4
    assert torch.equal(chosen.cpu().long(), inside)
    picked = scores.gather(-1, inside)
    torch.testing.assert_close(weight.cpu(), 2.5 * picked / picked.sum(-1, keepdim=True))
