"""vLLM's latent attention of a loaded model, without an engine. Runs in a vLLM process."""

import os
from types import SimpleNamespace
from typing import Any

import torch

from tests.engine.cpu import mixtures
from tests.engine.cpu.direct import _changed, _loaded
from tunan.engine.cpu.switch import VARIABLE

BLOCK_TOKENS = 16
LENGTHS = (1, 17, 70)
BLOCKS = 5  # of each sequence


def look(question: dict[str, Any]) -> dict[str, Any]:
    """{"experts", "latents": questions of mixtures.py and of this file} -> {"experts", "latents":
    what `compare` says of each, "expert gaps", "latent gaps": `gaps` of the last, "refusals"}."""
    experts, latents = question["experts"], question["latents"]
    return {
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
