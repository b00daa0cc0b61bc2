"""Stand-ins for vllm-ascend's own C++ operators (`torch.ops._C_ascend`).

The published library that has them is built against torch 2.10 and does not load beside 2.13, and
its kernels are Ascend C, which only the chip runs. vllm-ascend 0.23.0 calls these without asking
whether the library is there; each does what the torch_npu operator of the same purpose does, so
that one runs.

| operator | what runs |
|---|---|
| moe_gating_top_k | npu_moe_gating_top_k |
| npu_moe_init_routing_custom | npu_moe_init_routing_v2 |
| grouped_matmul_swiglu_quant_weight_nz | npu_grouped_matmul, npu_swiglu, npu_dynamic_quant |
| npu_dequant_swiglu_quant | the same arithmetic with torch operators |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_MOE_GATING_TOP_K = (
    "moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, "
    "int renorm, int norm_type, bool out_flag, float routed_scaling_factor, float eps, "
    "Tensor? bias_opt=None) -> (Tensor y, Tensor expert_idx, Tensor out)"
)
_INIT_ROUTING = (
    "npu_moe_init_routing_custom(Tensor x, Tensor expert_idx, *, Tensor? scale=None, "
    "Tensor? offset=None, int active_num=-1, int expert_capacity=-1, int expert_num=-1, "
    "int drop_pad_mode=0, int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, "
    "int quant_mode=0, int[2] active_expert_range=[], int row_idx_type=0) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_GROUPED_SWIGLU_QUANT = (
    "grouped_matmul_swiglu_quant_weight_nz(Tensor x, Tensor weight, Tensor weight_scale, "
    "Tensor x_scale, Tensor group_list, *, Tensor? bias=None, Tensor? offset=None, "
    "float swiglu_limit=0.0) -> (Tensor output, Tensor output_scale, Tensor output_offset)"
)
_DEQUANT_SWIGLU_QUANT = (
    "npu_dequant_swiglu_quant(Tensor x, *, Tensor? weight_scale=None, "
    "Tensor? activation_scale=None, Tensor? bias=None, Tensor? quant_scale=None, "
    "Tensor? quant_offset=None, Tensor? group_index=None, bool activate_left=True, "
    "int quant_mode=0, int swiglu_mode=0, float clamp_limit=0.0, float glu_alpha=1.0, "
    "float glu_bias=0.0) -> (Tensor y, Tensor scale)"
)

_registered: list[Any] = []


def _moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
    bias_opt: torch.Tensor | None = None,
) -> Any:
    import torch

    return torch.ops.npu.npu_moe_gating_top_k(
        x,
        k,
        bias=bias_opt,
        k_group=k_group,
        group_count=group_count,
        group_select_mode=group_select_mode,
        renorm=renorm,
        norm_type=norm_type,
        out_flag=out_flag,
        routed_scaling_factor=routed_scaling_factor,
        eps=eps,
    )


def _init_routing(x: torch.Tensor, expert_idx: torch.Tensor, **settings: Any) -> Any:
    import torch

    return torch.ops.npu.npu_moe_init_routing_v2(x, expert_idx, **settings)


def _grouped_swiglu_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    swiglu_limit: float = 0.0,
) -> Any:
    """The three operators that vllm-ascend itself calls where the fused one is off."""
    import torch

    if bias is not None or offset is not None or swiglu_limit:
        raise NotImplementedError("grouped_matmul_swiglu_quant_weight_nz: bias, offset and limit")
    npu = torch.ops.npu
    (gate_up,) = npu.npu_grouped_matmul(
        [x],
        [weight],
        scale=[weight_scale.to(torch.bfloat16)],
        per_token_scale=[x_scale],
        group_list=group_list,
        split_item=2,
        group_type=0,
        group_list_type=0,
        output_dtype=torch.bfloat16,
    )
    rows, scale = npu.npu_dynamic_quant(npu.npu_swiglu(gate_up))
    return rows, scale, scale.new_empty(0)


def _dequant_swiglu_quant(
    x: torch.Tensor,
    *,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor,
    group_index: torch.Tensor,
    activate_left: bool = True,
    quant_mode: int = 0,
    bias: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    swiglu_mode: int = 0,
    clamp_limit: float = 0.0,
    glu_alpha: float = 1.0,
    glu_bias: float = 0.0,
) -> Any:
    """x holds 32-bit sums of each expert's rows in turn; group_index has how many each.

    Both modes of SwiGLU take halves in vllm-ascend's kernel; the second also clamps, scales and
    shifts, which is the first when it does none of these.
    """
    import torch

    given = [one is not None for one in (bias, quant_scale, quant_offset)]
    variant = swiglu_mode == 1 and (clamp_limit, glu_alpha, glu_bias) != (0.0, 1.0, 0.0)
    if quant_mode != 1 or variant or any(given):
        raise NotImplementedError(
            "npu_dequant_swiglu_quant: dynamic quantisation of plain SwiGLU only"
        )
    weight_scale = weight_scale.reshape(-1, x.shape[-1])
    experts = torch.arange(group_index.numel(), device=x.device)
    owners = torch.repeat_interleave(experts, group_index)
    rows = owners.numel()
    sums = x[:rows].float() * weight_scale[owners] * activation_scale[:rows, None]
    left, right = sums.chunk(2, dim=-1)
    gate, up = (left, right) if activate_left else (right, left)
    y = torch.nn.functional.silu(gate) * up
    scale = x.new_zeros(x.shape[0], dtype=torch.float32)
    scale[:rows] = y.abs().amax(dim=-1) / 127
    quantised = x.new_zeros((x.shape[0], y.shape[-1]), dtype=torch.int8)
    quantised[:rows] = torch.round(y / scale[:rows, None]).to(torch.int8)
    return quantised, scale


_OPERATORS = (
    (_MOE_GATING_TOP_K, _moe_gating_top_k),
    (_INIT_ROUTING, _init_routing),
    (_GROUPED_SWIGLU_QUANT, _grouped_swiglu_quant),
    (_DEQUANT_SWIGLU_QUANT, _dequant_swiglu_quant),
)


def register() -> None:
    """Defines the operators in this process, unless vllm-ascend's own library has."""
    import torch

    if _registered or hasattr(torch.ops._C_ascend, "moe_gating_top_k"):
        return
    library: Any = torch.library.Library("_C_ascend", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema, function in _OPERATORS:
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")
    _registered.append(library)  # the definitions live as long as the object
