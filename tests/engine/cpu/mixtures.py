"""vLLM's layers of experts, loaded but without an engine around them. Runs in a vLLM process.

The reference follows the models' papers (DeepSeek-V2, arXiv 2405.04434; DeepSeek-V3, arXiv
2412.19437) and the checkpoint's own integers, in float64; only the router's logits are vLLM's.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import silu

from tests.engine.cpu.direct import _changed, _loaded
from tests.engine.cpu.runs import record_log

TOKENS = (1, 40)


def compare(question: dict[str, Any]) -> dict[str, Any]:
    """{"model", "dtype", "kv_cache"} -> of all layers of experts: {"methods": names of the
    methods vLLM uses, "error": the largest relative error, "alone": whether a token has the bits
    alone that it has among others}."""
    from vllm.forward_context import set_forward_context

    stored = load_file(Path(question["model"]) / "model.safetensors")
    methods, errors, alone = set(), [], []
    with _loaded(question) as (config, model):
        hf = config.model_config.hf_config
        for number, layer in enumerate(model.model.layers):
            if not hasattr(layer.mlp, "experts"):
                continue
            methods.add(type(layer.mlp.experts.routed_experts.quant_method).__name__)
            x = torch.randn(max(TOKENS), hf.hidden_size, generator=torch.Generator().manual_seed(7))
            x = x.to(config.model_config.dtype)
            with set_forward_context(None, config, num_tokens=len(x)), torch.inference_mode():
                found = [layer.mlp(x[:count].clone()) for count in TOKENS]
                logits = layer.mlp.gate(x)[0]
            expected = _layer(hf, stored, f"model.layers.{number}.mlp", x, logits)
            errors.append(float((found[-1] - expected).norm() / expected.norm()))
            alone.append(torch.equal(found[0], found[-1][: TOKENS[0]]))
    return {"methods": sorted(methods), "error": max(errors), "alone": all(alone)}


def gaps(question: dict[str, Any]) -> dict[str, Any]:
    """Why `moe.py` leaves a layer it covers to vLLM after one thing has changed; and what is
    logged where it does, asked twice."""
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    from tunan.engine.cpu.moe import _gap_of_layer, _gap_of_numbers, method_for

    logged = record_log()
    said: dict[str, Any] = {}
    with _loaded(question) as (config, model):
        layer = model.model.layers[1].mlp.experts.routed_experts
        method, moe = layer.quant_method, layer.moe_config
        said["nothing"] = _gap_of_layer(layer, moe)
        for name, value in (
            ("in_dtype", torch.float64),
            ("activation", MoEActivation.GELU),
            ("swiglu_limit", 7.0),
            ("has_bias", True),
            ("is_lora_enabled", True),
        ):
            with _changed(moe, name, value):
                said[name] = _gap_of_layer(layer, moe)
        with _changed(layer, "apply_router_weight_on_input", True):
            said["weighed inputs"] = _gap_of_layer(layer, moe)
        with _changed(moe, "swiglu_limit", 7.0):
            asked = (layer, layer.layer_name, config.quant_config, moe)
            said["methods"] = [method_for(*asked) for _twice in range(2)]
        said["log"] = [line for line in logged if "experts:" in line]
        parallel = moe.moe_parallel_config
        for name, value in (("dp_size", 2), ("enable_eplb", True)):
            with _changed(parallel, name, value):
                said[name] = _gap_of_layer(layer, moe)
        weights, inputs = method.weight_quant, method.input_quant
        said["zero points"] = _gap_of_numbers(weights, SimpleNamespace(symmetric=False))
        for name, bits, strategy, group in (
            ("a tensor", 8, "tensor", None),
            ("large groups", 4, "group", 256),
            ("small groups", 4, "group", 64),
        ):
            fake = SimpleNamespace(num_bits=bits, strategy=strategy, group_size=group)
            said[name] = _gap_of_numbers(fake, inputs)
    return said


def _layer(
    config: Any,
    stored: Mapping[str, torch.Tensor],
    name: str,
    x: torch.Tensor,
    logits: torch.Tensor,
) -> torch.Tensor:
    """Routed and shared experts of x [tokens, hidden]: float64."""
    bias = stored.get(f"{name}.gate.e_score_correction_bias")
    chosen, factors = _route(config, logits.double(), bias)
    total = _mlp(stored, f"{name}.shared_experts", x.double())
    for expert in range(config.n_routed_experts):
        tokens, place = torch.nonzero(chosen == expert, as_tuple=True)
        found = _mlp(stored, f"{name}.experts.{expert}", x[tokens].double())
        total[tokens] += factors[tokens, place][:, None] * found
    return total


def _route(
    config: Any, logits: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = logits.sigmoid() if config.scoring_func == "sigmoid" else logits.softmax(-1)
    ranked = scores if bias is None else scores + bias.double()
    groups = ranked.view(len(ranked), config.n_group, -1)
    best = groups.amax(-1) if bias is None else groups.topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(best).scatter(1, best.topk(config.topk_group, -1).indices, 1.0)
    open_to = kept.bool().repeat_interleave(groups.shape[2], dim=1)
    ranked = ranked.masked_fill(~open_to, -torch.inf)
    chosen = ranked.topk(config.num_experts_per_tok, -1).indices
    factors = scores.gather(1, chosen)
    if config.norm_topk_prob:
        factors = factors / factors.sum(-1, keepdim=True)
    return chosen, factors * config.routed_scaling_factor


def _mlp(stored: Mapping[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    gate, up = (_linear(stored, f"{name}.{part}_proj.weight", x) for part in ("gate", "up"))
    return _linear(stored, f"{name}.down_proj.weight", silu(gate) * up)


def _linear(stored: Mapping[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    """What the integers say of x, rounded to 8 bits a row."""
    weight, scale = stored[name].double(), stored[f"{name}_scale"].double()
    dense = weight * scale.repeat_interleave(weight.shape[1] // scale.shape[1], dim=1)
    step = x.abs().amax(-1, keepdim=True) / 127
    return (x / step).round() * step @ dense.T
