"""A loaded model without an engine around it. Runs in a vLLM process."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from tests.engine.one_rank import one_rank

BLOCK_TOKENS = 32
BLOCKS_OF_A_SEQUENCE = 8
# New tokens of each sequence in three steps: prefill, decode, decode with a chunk of prefill.
STEPS = ((5, 70, 33), (1, 1, 1), (1, 40, 1))


def ask_all(asked: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """What the functions of these names here answer, in one process."""
    return [globals()[name](question) for name, question in asked]


def compare(question: dict[str, Any]) -> dict[str, Any]:
    """{"model", "dtype", "kv_cache"} -> {"fused": whether it can be, "difference": the largest
    of hidden states and logits of any step between fused and unfused, in deviations}."""
    with _loaded(question) as (config, model):
        decoder = model._decoder
        results = []
        for chosen in (decoder, None):
            model._decoder = chosen
            results.append(_run(config, model, question["kv_cache"]))
        pairs = zip(*results, strict=True)
        largest = max(float((left - right).abs().max() / right.std()) for left, right in pairs)
        return {"fused": decoder is not None, "difference": largest}


def dry_run(question: dict[str, Any]) -> list[int]:
    """The shape of what a step without requests gives, where vLLM's layers must not run."""
    from vllm.forward_context import set_forward_context

    with _loaded(question) as (config, model):
        model.model.forward = None
        with set_forward_context(None, config, num_tokens=7), torch.inference_mode():
            return list(model(torch.arange(7), torch.arange(7)).shape)


def refusals(question: dict[str, Any]) -> dict[str, str | None]:
    """What `coverage.refusal` says of a model it covers after one thing has changed."""
    from tunan.engine.cpu.coverage import refusal

    fake = SimpleNamespace()
    said: dict[str, str | None] = {}
    with _loaded(question) as (config, model):
        said["nothing"] = refusal(model, config)
        config.parallel_config.pipeline_parallel_size = 2
        said["pipeline"] = refusal(model, config)
        config.parallel_config.pipeline_parallel_size = 1
        for name in ("lora_config", "speculative_config", "kv_transfer_config"):
            setattr(config, name, fake)
            said[name] = refusal(model, config)
            setattr(config, name, None)
        layer = model.model.layers[1]
        for path, name, value in (
            ("self_attn.qkv_proj", "tunan_packed", None),
            ("mlp.down_proj", "bias", torch.nn.Parameter(torch.zeros(1))),
            ("self_attn", "rotary_emb", torch.nn.Identity()),
            ("self_attn.attn", "kv_sharing_target_layer_name", "another"),
        ):
            with _changed(layer.get_submodule(path), name, value):
                said[name] = refusal(model, config)
        with _changed(layer.self_attn.attn.impl, "stock_because", "it has sinks"):
            said["attention"] = refusal(model, config)
    return said


def attention(question: dict[str, Any]) -> str | None:
    """Why vLLM's attention runs in the model; None if ours does. "isa": what vLLM's would use."""
    from tunan.engine.cpu import attention as module

    theirs = _changed(module, "_get_attn_isa", lambda *_: question["isa"])
    with theirs, _loaded(question) as (_, model):
        reason: str | None = model.model.layers[0].self_attn.attn.impl.stock_because
        return reason


class _changed:  # reads as a verb where it is used
    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._owner, self._name, self._value = owner, name, value

    def __enter__(self) -> None:
        self._before = getattr(self._owner, self._name)
        setattr(self._owner, self._name, self._value)

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._before)


class _loaded:
    """(configuration, model) of a question, loaded by vLLM's default loader."""

    def __init__(self, question: dict[str, Any]) -> None:
        self._question = question

    def __enter__(self) -> tuple[Any, Any]:
        import vllm.v1.worker.cpu_worker  # noqa: F401  # prepares torch for a machine without GPU
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        alone = {"degree": 1, "rank": 0, "load_format": "auto"}
        self._rank = one_rank(alone | self._question)
        config, loader = self._rank.__enter__()
        config.cache_config.cache_dtype = self._question["kv_cache"]
        config.cache_config.block_size = BLOCK_TOKENS
        return config, loader.load_model(config, config.model_config)

    def __exit__(self, *error: Any) -> None:
        self._rank.__exit__(*error)


def _run(config: Any, model: Any, kv_cache: str) -> list[torch.Tensor]:
    from vllm.forward_context import set_forward_context

    attentions = [layer.self_attn.attn for layer in model.model.layers]
    for attention in attentions:
        attention.kv_cache = _empty_cache(attention, kv_cache, config.model_config.dtype)
    generator = torch.Generator().manual_seed(0)
    lengths = [0] * len(STEPS[0])
    results: list[torch.Tensor] = []
    for step in STEPS:
        metadata, positions = _metadata(step, lengths)
        ids = torch.randint(3, 999, positions.shape, generator=generator)
        names = [attention.layer_name for attention in attentions]
        slots = dict.fromkeys(names, metadata.slot_mapping)
        context = set_forward_context(
            dict.fromkeys(names, metadata), config, num_tokens=len(ids), slot_mapping=slots
        )
        with torch.inference_mode(), context or nullcontext():
            hidden = model(ids, positions)
            results += [hidden, model.compute_logits(hidden)]
    return results


def _empty_cache(attention: Any, kv_cache: str, dtype: torch.dtype) -> torch.Tensor:
    int8 = kv_cache != "auto"
    content = 2 * attention.head_size + (8 if int8 else 0)
    blocks = 1 + BLOCKS_OF_A_SEQUENCE * len(STEPS[0])
    shape = (blocks, attention.num_kv_heads, BLOCK_TOKENS, content)
    return torch.zeros(shape, dtype=torch.int8 if int8 else dtype)


def _metadata(step: tuple[int, ...], lengths: list[int]) -> tuple[Any, torch.Tensor]:
    """That of one step, which adds `step` tokens to the sequences; and their positions."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata

    first = [1 + index * BLOCKS_OF_A_SEQUENCE for index in range(len(step))]
    positions: list[int] = []
    slots: list[int] = []
    for index, added in enumerate(step):
        for position in range(lengths[index], lengths[index] + added):
            positions.append(position)
            slots.append(first[index] * BLOCK_TOKENS + position)
        lengths[index] += added
    table = [list(range(block, block + BLOCKS_OF_A_SEQUENCE)) for block in first]
    starts = [0, *torch.tensor(step).cumsum(0).tolist()]
    metadata = CPUAttentionMetadata(
        num_actual_tokens=len(slots),
        max_query_len=max(step),
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        max_seq_len=max(lengths),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_table=torch.tensor(table, dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        scheduler_metadata=None,
    )
    return metadata, torch.tensor(positions)
