"""vLLM's routed experts in compressed-tensors' W8A8 (int8) and W4A8, by our kernel.

vLLM 0.32 has kernels for them on some CPUs only (W8A8 with AMX or on ARM, W4A8 on ARM) and
for plain softmax routing only, and refuses the model elsewhere: DeepSeek-V3 everywhere. Its layer,
replaced by `routed_experts.py`, takes one of the methods here instead. Loading, routing, shared
experts and parallelism stay vLLM's own.
"""

from typing import Any

import torch
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w4a8_int8 as w4a8,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w8a8_int8 as w8a8,
)

from tunan.engine.cpu import packed_experts
from tunan.engine.cpu.log import logger
from tunan.engine.cpu.packed_experts import ExpertsForm, mixture_of
from tunan.engine.cpu.packed_file import PackedWeights
from tunan.engine.cpu.packed_linear import Form
from tunan.engine.cpu.process import sidecar_of, start_threads
from tunan.kernels.linear import GROUPS

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# vLLM's names of the parameters of gate and up, and of down, and ours of their packed files.
_PARTS = {"w13": "gate_up", "w2": "down"}


def method_for(layer: Any, prefix: str, quant_config: Any, moe_config: Any) -> Any:
    """Our method for the experts `prefix`; None, after a line in the log where they are of a scheme
    of ours, if vLLM is to choose."""
    found = _scheme(layer, prefix, quant_config)
    if found is None:
        return None
    scheme, weights, inputs = found
    reason = _gap_of_numbers(weights, inputs) or _gap_of_layer(layer, moe_config)
    if reason is not None:
        logger.warning_once("tunan: vLLM's own kernels run the %s experts: %s", scheme, reason)
        return None
    return (W8A8Method if scheme == "W8A8" else W4A8Method)(weights, inputs, moe_config)


def _scheme(layer: Any, prefix: str, quant_config: Any) -> tuple[str, Any, Any] | None:
    """("W8A8" or "W4A8", weights, inputs) as compressed-tensors describes the experts, if it does:
    what vLLM's `CompressedTensorsMoEMethod.get_moe_method` looks at."""
    if quant_config.online_quantization_config is not None:
        return None
    quant_config._add_fused_moe_to_target_scheme_map()
    names = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
    schemes = [quant_config.get_scheme_dict(layer, f"{prefix}.0.{name}") for name in names]
    first = schemes[0]
    if first is None or any(other != first for other in schemes):
        return None
    weights, inputs = first["weights"], first["input_activations"]
    if weights is None or inputs is None or weights.type != "int":
        return None
    if quant_config._is_dynamic_token_w8a8(weights, inputs):
        return "W8A8", weights, inputs
    if quant_config._is_dynamic_token_w4a8_int(weights, inputs):
        return "W4A8", weights, inputs
    return None


def _gap_of_numbers(weights: Any, inputs: Any) -> str | None:
    if not inputs.symmetric:
        return "activations have a zero point"
    if weights.num_bits == 8 and weights.strategy != "channel":
        return "weights have one scale a tensor"
    if weights.num_bits == 4 and weights.group_size not in GROUPS:
        return f"groups are of {weights.group_size}, not of {GROUPS}"
    return None


def _gap_of_layer(layer: Any, moe: Any) -> str | None:
    if moe.in_dtype not in _DTYPES:
        return f"activations are {moe.in_dtype}"
    if not moe.is_act_and_mul or moe.activation != MoEActivation.SILU:
        return f"the activation is {moe.activation.value}"
    if moe.swiglu_limit is not None:
        return "SwiGLU is clamped"
    if moe.has_bias:
        return "experts have biases"
    if moe.is_lora_enabled:
        return "LoRA is in use"
    if layer.apply_router_weight_on_input:
        return "the router weighs inputs"
    parallel = moe.moe_parallel_config
    if parallel.dp_size > 1 or parallel.pcp_size > 1 or parallel.is_sequence_parallel:
        return "tokens are shared out among ranks"
    if parallel.enable_eplb:
        return "experts move between ranks"
    return None


class PackingMethod:
    """What both methods do with a layer: its packed experts mapped or made, and run.

    Put before one of vLLM's methods, whose parameters and their loading it keeps.
    """

    bits = 8
    weight_quant: Any

    def create_weights(self, layer: Any, *sizes: Any, **named: Any) -> None:
        super().create_weights(layer, *sizes, **named)  # type: ignore[misc]
        self._sidecar = sidecar_of(get_current_vllm_config())
        self._forms = {part: self._form(layer, part) for part in _PARTS}
        self._found = {part: self._find(layer, part) for part in _PARTS}
        for part, found in self._found.items():
            if found is not None:
                _pass_over(layer, part)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Packs what was loaded, unless it was found, and lets go of what was loaded."""
        start_threads()
        packed = {part: self._found[part] or self._make(layer, part) for part in _PARTS}
        gate_up, down = ((packed[part], self._forms[part]) for part in _PARTS)
        packed_experts.attach(layer, gate_up, down)
        self._found = dict.fromkeys(_PARTS)
        for part in _PARTS:
            for name in (f"{part}_weight", f"{part}_weight_scale"):
                empty = torch.empty(0, dtype=getattr(layer, name).dtype)
                setattr(layer, name, nn.Parameter(empty, requires_grad=False))

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        """What vLLM's own kernels are told of scales: nothing, none of them runs."""
        return

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """The routed experts alone: the shared ones vLLM's runner has run before."""
        mixture = mixture_of(layer)
        if mixture is None:
            raise RuntimeError("experts are used before their weights are packed")
        here = topk_ids if layer.expert_map is None else layer.expert_map[topk_ids.long()]
        experts = here.to(torch.int32).contiguous()
        return mixture(x, experts, topk_weights.to(torch.float32).contiguous())

    def _form(self, layer: Any, part: str) -> ExpertsForm:
        count, outputs, inputs = getattr(layer, f"{part}_weight").shape
        group = self.weight_quant.group_size if self.bits == 4 else 0
        which = f"{layer.expert_placement_strategy} of {layer.global_num_experts}"
        return ExpertsForm(count, Form(outputs, inputs, self.bits, group), which)

    def _find(self, layer: Any, part: str) -> PackedWeights | None:
        return packed_experts.find(self._sidecar, _file(layer, part), self._forms[part])

    def _make(self, layer: Any, part: str) -> PackedWeights:
        weight, scale = (getattr(layer, f"{part}_weight{end}").data for end in ("", "_scale"))
        form = self._forms[part]
        return packed_experts.make(self._sidecar, _file(layer, part), form, weight, scale)


class W8A8Method(PackingMethod, w8a8.CompressedTensorsW8A8Int8MoEMethod):  # type: ignore[misc]
    """int8 weights with a scale an output, activations quantised a token at a time."""

    def __init__(self, weight_quant: Any, input_quant: Any, moe: Any) -> None:
        # Not vLLM's own, which looks for a kernel of vLLM's and raises where it has none.
        FusedMoEMethodBase.__init__(self, moe)
        self.weight_quant, self.input_quant = weight_quant, input_quant
        self.static_input_scales = False


class W4A8Method(PackingMethod, w4a8.CompressedTensorsW4A8Int8MoEMethod):  # type: ignore[misc]
    """Symmetric int4 weights in groups, activations quantised a token at a time."""

    bits = 4

    def __init__(self, weight_quant: Any, input_quant: Any, moe: Any) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        self.weight_quant, self.input_quant = weight_quant, input_quant
        self.has_bias, self.static_input_scales = False, False
        self.group_size = weight_quant.group_size


def _file(layer: Any, part: str) -> str:
    return f"{layer.layer_name}.{_PARTS[part]}"


def _pass_over(layer: Any, part: str) -> None:
    """Has vLLM neither read nor copy the weights of experts that were found."""
    for name in (f"{part}_weight", f"{part}_weight_scale"):
        getattr(layer, name).weight_loader = _ignore


def _ignore(parameter: Any, loaded: Any, *shard: Any, **named: Any) -> bool:
    """A weight loader for what is packed already."""
    return True
