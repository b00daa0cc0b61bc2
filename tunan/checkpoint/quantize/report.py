"""What quantising does to the model's answers: it runs as it was and as it is now, on one text.

Both run through transformers on the CPU, the quantised one with its weights restored from their
integers, the input of every quantised layer rounded to int8 token by token, and keys and values
rounded as an int8 cache rounds them. Sums are floating point; what an engine's own kernels add is
not in it. The input of the experts' down projections is not rounded: transformers computes it
inside one function.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from math import exp, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tunan.checkpoint.architectures import architecture_of, number
from tunan.checkpoint.manifest import Quality
from tunan.checkpoint.plan import PlannedBlock
from tunan.checkpoint.quantize.compressed_tensors import SCALE_SUFFIX
from tunan.checkpoint.quantize.kv_cache import LIMIT, SCALES, is_cache_tensor
from tunan.checkpoint.quantize.rounding import restored
from tunan.checkpoint.quantize.running import FLOAT32_WEIGHTS, Running, fits, places, run_source
from tunan.checkpoint.quantize.smoothing import round_first
from tunan.checkpoint.source import Source
from tunan.errors import CheckFailedError
from tunan.notices import warn

if TYPE_CHECKING:
    import torch

# Log-probabilities of this many tokens are kept for the comparison: 1.1 GB for 129280 words.
MOST_TOKENS = 2048
MEASURED_TEXT = "measured.txt"
MEASURED_NAME = "the text shipped with Tunan for measuring"

Tensors = Mapping[str, "torch.Tensor"]


def is_worth_it(source: Source) -> bool:
    """Whether a report is made without being asked for: the model is small, fits into memory and
    is one that transformers has."""
    architecture = architecture_of(source.config)
    known = not architecture.indexer and not (
        architecture.experts and architecture.attention == "gqa"
    )
    weights = sum(prod(info.shape) for info in source.tensors.values())
    return known and weights <= FLOAT32_WEIGHTS and fits(source)


def measured_text() -> str:
    """The text shipped for measuring: classics from before 1900, none of them in the one that
    weights and caches are calibrated on."""
    return files(__package__).joinpath(MEASURED_TEXT).read_text(encoding="utf-8")


def compare(
    source: Source, directory: Path, blocks: tuple[PlannedBlock, ...], most: int = MOST_TOKENS
) -> Quality:
    """Runs `source` and its quantised `blocks` in `directory` on `most` tokens of the measured
    text, or on all it has; the log-probabilities of all of them are in memory, 4 bytes a word of
    the vocabulary.

    Raises what `run_source` raises, CheckFailedError if there is not the memory.
    """
    running, text = run_source(source), measured_text()
    _check_tokens(running, text, most, number(source.config, "vocab_size"))
    found = Comparison()
    expected = list(logprobs(running, text, most))
    stored = _Stored(directory, blocks)
    stored.load_into(running.model, source)
    scales = stored.cache_scales()
    cache = partial(_rounding_cache, scales) if scales else None
    with _rounded_inputs(running.model, stored.layers()):
        for before, (targets, now) in zip(
            expected, logprobs(running, text, most, cache), strict=True
        ):
            found.add(targets, before[1], now)
    return found.quality(MEASURED_NAME)


def _check_tokens(running: Running, text: str, asked: int, words: int) -> None:
    """Says where the text has fewer tokens than were asked for, and refuses more than fit."""
    there = running.count(text)
    if there < asked:
        warn(
            f"--report-tokens {asked}: the shipped text has {there} tokens with this model's "
            "tokenizer; all of them are used"
        )
    needed, free = 4 * words * min(there, asked), psutil.virtual_memory().available
    if needed > free:
        raise CheckFailedError(
            f"comparing {min(there, asked)} tokens takes {needed / 1e9:.1f} GB of memory and "
            f"{free / 1e9:.1f} GB are free; give fewer --report-tokens, or --no-report"
        )


@dataclass
class Comparison:
    """Two models on the same tokens: sums over what `add` was told."""

    tokens: int = 0
    loss_before: float = 0.0
    loss_now: float = 0.0
    squared_change: float = 0.0
    divergence: float = 0.0
    agreed: int = 0

    def add(self, targets: "torch.Tensor", before: "torch.Tensor", now: "torch.Tensor") -> None:
        """Log-probabilities [n, V] of `targets` [n], before and now."""
        was, became = (-found.gather(1, targets[:, None]).double() for found in (before, now))
        self.tokens += len(targets)
        self.loss_before += float(was.sum())
        self.loss_now += float(became.sum())
        self.squared_change += float((became - was).square().sum())
        self.divergence += float((before.exp() * (before - now)).sum())
        self.agreed += int((before.argmax(1) == now.argmax(1)).sum())

    def quality(self, text: str) -> Quality:
        """What the manifest says of it, `text` being the name of what they ran on.

        The standard error takes the changes of single tokens for independent.
        """
        before, now = exp(self.loss_before / self.tokens), exp(self.loss_now / self.tokens)
        mean = (self.loss_now - self.loss_before) / self.tokens
        variance = max(0.0, self.squared_change / self.tokens - mean**2)
        return Quality(
            text=text,
            tokens=self.tokens,
            perplexity_before=round(before, 4),
            perplexity=round(now, 4),
            perplexity_increase=round(now / before - 1, 5),
            standard_error=round(now / before * (variance / self.tokens) ** 0.5, 5),
            kl_divergence=round(self.divergence / self.tokens, 6),
            greedy_agreement=round(self.agreed / self.tokens, 4),
        )


def logprobs(
    running: Running, text: str, most: int, cache: Callable[[], Any] | None = None
) -> "Iterator[tuple[torch.Tensor, torch.Tensor]]":
    """(targets [n - 1], log-probabilities [n - 1, V] float32) of each window of the text's first
    `most` tokens; `cache` makes what keys and values of a window go through."""
    import torch

    with torch.inference_mode():
        for window in running.windows(text, most):
            options = {"past_key_values": cache()} if cache else {"use_cache": False}
            logits = running.model(window, **options).logits[0, :-1].float()
            yield window[0, 1:], torch.log_softmax(logits, -1)


def _rounding_cache(scales: Tensors) -> Any:
    import torch
    from transformers import DynamicCache

    class Rounding(DynamicCache):  # type: ignore[misc]
        def update(
            self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            rounded = []
            for states, name in zip((keys, values), SCALES, strict=True):
                scale = scales[f"model.layers.{layer_idx}.self_attn.attn.{name}"]
                scale = scale.view(1, states.shape[1], 1, states.shape[3]).to(states.dtype)
                steps = (states / scale).round().clamp(-LIMIT - 1, LIMIT)
                rounded.append(steps * scale)
            return rounded[0], rounded[1]

    return Rounding()


@contextmanager
def _rounded_inputs(model: Any, layers: set[str]) -> Iterator[None]:
    """Rounds what goes into the named layers, and into the experts, while the block runs."""
    hooks = [
        module.register_forward_pre_hook(round_first)
        for name, module in model.named_modules()
        if name in layers or (name.endswith(".mlp.experts") and f"{name}.0.up_proj" in layers)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Stored:
    """The quantised tensors of blocks on the disk."""

    def __init__(self, directory: Path, blocks: tuple[PlannedBlock, ...]) -> None:
        self._directory = directory
        self._files = {
            entry.name: block.file
            for block in blocks
            if block.rank is None
            for entry in block.entries
            if entry.quantised or is_cache_tensor(entry.name)
        }

    def layers(self) -> set[str]:
        """Names of the quantised layers."""
        scales = (name for name in self._files if name.endswith(f".weight{SCALE_SUFFIX}"))
        return {name.removesuffix(f".weight{SCALE_SUFFIX}") for name in scales}

    def cache_scales(self) -> dict[str, "torch.Tensor"]:
        """The int8 cache's scales; empty without one."""
        return {name: self._read(name).float() for name in self._files if is_cache_tensor(name)}

    def load_into(self, model: Any, source: Source) -> None:
        """Puts what the integers stand for in the places of the source's weights."""
        import torch

        layers = self.layers()
        with torch.no_grad():
            for name, parameter in model.state_dict(keep_vars=True).items():
                if name == "lm_head.weight" and name not in source.tensors:
                    continue
                for stored, part in places(name, parameter.data, source):
                    if stored.removesuffix(".weight") in layers:
                        scales = self._read(stored + SCALE_SUFFIX)
                        part.copy_(restored(self._read(stored), scales))

    def _read(self, name: str) -> "torch.Tensor":
        from safetensors import safe_open

        with safe_open(self._directory / self._files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor
