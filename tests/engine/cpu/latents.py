"""vLLM's latent attention of a loaded model, without an engine. Runs in a vLLM process."""

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from tests.engine.cpu import mixtures
from tests.engine.cpu.direct import _changed, _loaded
from tunan.engine.cpu.switch import VARIABLE
from tunan.kernels.dense import dense_of_batches

BLOCK_TOKENS = 16
LENGTHS = (1, 17, 70)
BLOCKS = 6  # of each sequence
# New tokens of each sequence in five steps: those that are decoded come first. Eight at most.
STEPS = (
    (5, 70, 33),
    (1, 1, 1),
    (1, 1, 1, 20, 2, 40),
    (1, 1, 1, 1, 1, 1, 9, 64),
    (1, 1, 1, 1, 1, 1, 1, 1),
)


def look(question: dict[str, Any]) -> dict[str, Any]:
    """{"experts", "latents", "layers": questions of mixtures.py and of this file} -> the same
    names: what `compare` and `layers` say of each; "expert gaps", "latent gaps": `gaps` of the
    last; "refusals"."""
    experts, latents = question["experts"], question["latents"]
    return {
        "layers": [layers(one) for one in question["layers"]],
        "experts": [mixtures.compare(one) for one in experts],
        "expert gaps": mixtures.gaps(experts[-1]),
        "latents": [compare(one) for one in latents],
        "latent gaps": gaps(latents[-1] | {"kv_cache": "auto"}),
        "refusals": refusals(latents[-1] | {"kv_cache": "auto"}),
    }


def compare(question: dict[str, Any]) -> dict[str, Any]:
    """{"model", "dtype", "kv_cache", "arguments"} -> {"class" of the attention, "stock_because",
    "bytes" of a token in the cache, "error": of decoding against vLLM's own kernel, relative}."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    with _loaded(question) as (config, model), torch.inference_mode():
        attention = model.model.layers[0].self_attn.mla_attn.mla_attn
        impl, spec = attention.impl, attention.get_kv_cache_spec(config)
        spec = AttentionBackendEnum.CPU_MLA.get_class().customize_spec(spec)
        ours = _decode(impl, spec.state_content_size_bytes, question["kv_cache"] != "auto")
        with _changed(impl, "stock_because", "the test asks"):
            plain = impl.head_size * config.model_config.dtype.itemsize
            stock = _decode(impl, plain, False)
        return {
            "class": type(impl).__name__,
            "stock_because": impl.stock_because,
            "bytes": spec.state_content_size_bytes,
            "error": float((ours - stock).norm() / stock.norm()),
        }


def layers(question: dict[str, Any]) -> dict[str, Any]:
    """{"model", "dtype", "kv_cache", "arguments"} -> of several steps: {"fused": whether its layers
    can be; "calls": into the kernels, a layer, of a step of prompts and of one that decodes;
    "alone": whether every sequence has the bits alone that it has among others, fused; "in halves":
    whether a rank that adds up does so twice a layer and has the same bits;
    "difference": of the logits of fused layers from vLLM's own, relative, the largest of any step;
    "otherwise": the same where vLLM's two products in latent space are ours; "same": the least part
    of any step's tokens for which fused layers rank the same first as vLLM's own}."""
    int8 = question["kv_cache"] != "auto"
    with _loaded(question) as (config, model), torch.inference_mode():
        is_fused = model._decoder is not None
        fused = _run(config, model, STEPS, int8)
        with _changed(model, "_decoder", None):
            unfused = _run(config, model, STEPS, int8)
            with _changed(torch, "bmm", _bmm):
                ours = _run(config, model, STEPS, int8)
        pairs = list(zip(fused, unfused, strict=True))
        return {
            "fused": is_fused,
            "calls": _calls(config, model, int8),
            "alone": all(_alone(config, model, fused, i, int8) for i in range(len(STEPS[-1]))),
            "in halves": _in_halves(config, model, fused, int8),
            "difference": max(map(_difference, fused, unfused)),
            "otherwise": max(map(_difference, fused, ours)),
            "same": min(float((a.argmax(-1) == b.argmax(-1)).float().mean()) for a, b in pairs),
        }


def _in_halves(config: Any, model: Any, expected: list[torch.Tensor], int8: bool) -> bool:
    """With ranks to add up with, of which there is one."""
    from tunan.engine.cpu.latent_layers import LatentLayers

    added: list[torch.Tensor] = []

    def add_up(part: torch.Tensor) -> torch.Tensor:
        added.append(part)
        return part.clone()  # as a collective may: what was given need not be what is returned

    with _changed(model, "_decoder", LatentLayers(model, config.model_config.dtype, add_up)):
        found = _run(config, model, STEPS, int8)
    same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    return same and len(added) == 2 * len(model.model.layers) * len(STEPS)


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def _bmm(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """PyTorch's, by our kernel."""
    if weight.stride(2) == 1:
        return out.copy_(dense_of_batches(x, weight, transposed=True))
    return out.copy_(dense_of_batches(x, weight.transpose(1, 2)))


def _calls(config: Any, model: Any, int8: bool) -> list[float]:
    from tunan.engine.cpu import latent_layers
    from tunan.kernels.latent import latent_layer

    calls: list[Any] = []

    def count(*given: Any) -> None:
        calls.append(given)
        latent_layer(*given)

    with _changed(latent_layers, "latent_layer", count):
        _run(config, model, [(5, 70)], int8)
        prompts = len(calls)
        _run(config, model, [(1,) * 8], int8)
    layers = len(model.model.layers)
    return [prompts / layers, (len(calls) - prompts) / layers]


def _alone(config: Any, model: Any, among: list[torch.Tensor], i: int, int8: bool) -> bool:
    """Whether sequence i, run alone, has the bits that it has in the steps that gave `among`."""
    expected = [
        found[sum(step[:i]) : sum(step[: i + 1])]
        for step, found in zip(STEPS, among, strict=True)
        if i < len(step)
    ]
    steps = [(step[i],) for step in STEPS if i < len(step)]
    alone = _run(config, model, steps, int8, ids=i)
    return all(torch.equal(a, b) for a, b in zip(alone, expected, strict=True))


def _run(
    config: Any, model: Any, steps: Sequence[tuple[int, ...]], int8: bool, ids: int = 0
) -> list[torch.Tensor]:
    """The logits [tokens, vocabulary] float32 of each step, over caches that are empty at first.

    Token t of sequence i is the same in every run, as of `ids` + i.
    """
    from vllm.forward_context import set_forward_context

    mlas = [layer.self_attn.mla_attn.mla_attn for layer in model.model.layers]
    most = max(map(len, steps))
    for mla in mlas:
        size = 584 if int8 else mla.impl.head_size
        dtype = torch.int8 if int8 else config.model_config.dtype
        mla.kv_cache = torch.zeros(1 + BLOCKS * most, BLOCK_TOKENS, size, dtype=dtype)
    lengths, found = [0] * most, []
    for step in steps:
        before = lengths[: len(step)]
        lengths[: len(step)] = [b + n for b, n in zip(before, step, strict=True)]
        at = [torch.arange(b, b + n) for b, n in zip(before, step, strict=True)]
        tokens = torch.cat([3 + (37 * t + 101 * (ids + i) + t * t) % 900 for i, t in enumerate(at)])
        slots = torch.cat([(1 + BLOCKS * i) * BLOCK_TOKENS + t for i, t in enumerate(at)])
        metadata = _metadata(mlas[0], step, before, lengths, slots)
        names = [mla.layer_name for mla in mlas]
        context = set_forward_context(
            dict.fromkeys(names, metadata),
            config,
            num_tokens=len(tokens),
            slot_mapping=dict.fromkeys(names, slots),
        )
        with context:
            found.append(model.compute_logits(model(tokens, torch.cat(at))).float())
    return found


def _metadata(
    mla: Any, step: tuple[int, ...], before: list[int], lengths: list[int], slots: torch.Tensor
) -> Any:
    """vLLM's of a step that adds `step` tokens to sequences of `before`. A prompt of one token is
    decoded, as vLLM has it."""
    from vllm.model_executor.layers.attention import mla_attention as vllms

    def numbers(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    starts = [0, *torch.tensor(step).cumsum(0).tolist()]
    decodes = sum(count == 1 for count in step)
    assert all(count == 1 for count in step[:decodes]), "those to be decoded come first"
    table = 1 + torch.arange(BLOCKS * len(step), dtype=torch.int32).view(len(step), BLOCKS)
    prefill = None
    if decodes < len(step):
        prefill = vllms.MLACommonPrefillMetadata(
            block_table=table[decodes:],
            query_start_loc=numbers(starts[decodes:]) - decodes,
            max_query_len=max(step),
            prefill_backend=mla.prefill_backend,
        )
        mla.prefill_backend.prepare_metadata(prefill)
    return vllms.MLACommonMetadata(
        num_reqs=len(step),
        max_query_len=max(step),
        max_seq_len=max(lengths),
        num_actual_tokens=starts[-1],
        query_start_loc=numbers(starts),
        slot_mapping=slots,
        num_decodes=decodes,
        num_decode_tokens=decodes,
        num_prefills=len(step) - decodes,
        prefill=prefill,
        decode=vllms.MLACommonDecodeMetadata(
            block_table=table[:decodes],
            seq_lens=numbers(lengths[:decodes]),
            dcp_tot_seq_lens=None,
        )
        if decodes
        else None,
    )


def gaps(question: dict[str, Any]) -> dict[str, str | None]:
    """Why `mla.py` leaves a layer it covers to vLLM after one thing has changed; and what it says
    of an int8 cache."""
    from vllm.v1.attention.backends.mla.amx_mla import AMXMLAImpl

    from tunan.engine.cpu import mla
    from tunan.engine.cpu.attention import INT8
    from tunan.errors import UsageError

    said: dict[str, str | None] = {}
    with _loaded(question) as (config, _):
        said["nothing"] = mla._gap("auto")
        said["fp8"] = mla._gap("fp8")
        for name in ("speculative_config", "kv_transfer_config"):
            with _changed(config, name, SimpleNamespace()):
                said[name] = mla._gap("auto")
        with _changed(config.model_config, "dtype", torch.float16):
            said["float16"] = mla._gap("auto")
        with _changed(config.model_config, "quantization", None):
            said["unquantised"] = mla._preference("auto")
            said["unquantised, int8"] = mla._preference(INT8)
        os.environ[VARIABLE] = "linear"
        said["switched off"] = mla._gap("auto")
        del os.environ[VARIABLE]

        def fake_init(self: Any, *args: Any, **named: Any) -> None:
            self.kv_cache_dtype = INT8

        with _changed(AMXMLAImpl, "__init__", fake_init):
            try:
                mla.AmxMlaImpl()
            except UsageError as error:
                said["AMX"] = str(error)
    return said


def refusals(question: dict[str, Any]) -> dict[str, str | None]:
    """What `coverage.latent_refusal` says of a model it covers after one thing has changed."""
    from tunan.engine.cpu.coverage import latent_refusal

    said: dict[str, str | None] = {}
    with _loaded(question) as (config, model):
        said["nothing"] = latent_refusal(model, config)
        with _changed(config, "lora_config", SimpleNamespace()):
            said["lora_config"] = latent_refusal(model, config)
        fake = SimpleNamespace(**vars(config.model_config), use_mla=False)
        fake.architectures = config.model_config.architectures
        with _changed(config, "model_config", fake):
            said["use_mla"] = latent_refusal(model, config)
        layers = model.model.layers
        for owner, name, value in (
            (model.model, "is_v32", True),
            (layers[1].self_attn.q_b_proj, "tunan_packed", None),
            (layers[0].mlp.down_proj, "bias", torch.nn.Parameter(torch.zeros(1))),
            (layers[1], "use_sequence_parallel_moe", True),
            (layers[1].mlp.experts.routed_experts, "tunan_experts", None),
            (layers[1].mlp.experts.router, "use_grouped_topk", False),
            (layers[1].mlp.gate, "weight", torch.nn.Parameter(torch.zeros(1, 1))),
            (layers[1].self_attn, "rotary_emb", torch.nn.Identity()),
        ):
            with _changed(owner, name, value):
                said[name] = latent_refusal(model, config)
    return said


def _decode(impl: Any, token_bytes: int, int8: bool) -> torch.Tensor:
    """One step of three sequences over random latents: [3, heads, latent] float32."""
    random = torch.Generator().manual_seed(3)
    dtype = torch.int8 if int8 else torch.bfloat16
    shape = (1 + BLOCKS * len(LENGTHS), BLOCK_TOKENS, token_bytes // dtype.itemsize)
    cache = torch.zeros(shape, dtype=dtype)
    table = 1 + torch.arange(BLOCKS * len(LENGTHS), dtype=torch.int32).view(-1, BLOCKS)
    for blocks, length in zip(table, LENGTHS, strict=True):
        latent = torch.randn(length, impl.kv_lora_rank, generator=random).bfloat16()
        key = torch.randn(length, 1, impl.qk_rope_head_dim, generator=random).bfloat16()
        slots = int(blocks[0]) * BLOCK_TOKENS + torch.arange(length)
        impl.do_kv_cache_update(latent, key, cache, slots, impl.kv_cache_dtype, torch.ones(1))
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    metadata = SimpleNamespace(
        decode=SimpleNamespace(block_table=table, seq_lens=lengths),
        query_start_loc=torch.arange(len(LENGTHS) + 1, dtype=torch.int32),
    )
    query = torch.randn(len(LENGTHS), impl.num_heads, impl.head_size, generator=random).bfloat16()
    parts = query[..., : impl.kv_lora_rank], query[..., impl.kv_lora_rank :]
    found, _ = impl.forward_mqa(parts, cache, metadata, None)
    return torch.as_tensor(found).float()
