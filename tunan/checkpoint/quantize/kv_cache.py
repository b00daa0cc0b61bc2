"""`--kv int8`: the key/value cache in int8 on Ascend, its scales found by running the model.

vllm-ascend 0.23 calls it C8 (`quantization/methods/kv_c8.py`, `attention/attention_v1.py`): one
static symmetric scale for each channel of keys (after the rotation) and of values. They are
parameters of each attention layer, [key/value heads * head size], under the names below; the
offsets are there too and zero, because decoding does not read them. For models with MLA it has no
such cache.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunan.checkpoint.architectures import architecture_of, layer_of
from tunan.checkpoint.quantize.calibration_text import start_of
from tunan.checkpoint.quantize.running import Running, run_source
from tunan.checkpoint.source import Source, TensorInfo
from tunan.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    import torch

LIMIT = 127
MOST_TOKENS = 16384
SCALES = ("k_cache_scale", "v_cache_scale")
OFFSETS = ("k_cache_offset", "v_cache_offset")
SHIPPED_TEXT = "calibration.txt"

CacheScales = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class Calibration:
    """The text a model is run on; None is the one shipped, of classics from before 1900."""

    path: Path | None = None

    @property
    def text(self) -> str:
        """As much of it as can be used; raises what `start_of` raises."""
        if self.path is None:
            return files(__package__).joinpath(SHIPPED_TEXT).read_text(encoding="utf-8")
        return start_of(self.path)

    @property
    def name(self) -> str:
        """What the manifest calls it."""
        return "the text shipped with Tunan" if self.path is None else self.path.name


def check_cache_fits(config: Mapping[str, Any], target: str, tensor_parallel: int | None) -> None:
    """Raises UsageError where there is no static int8 cache for a model, target or layout."""
    if not target.startswith("ascend"):
        raise UsageError(
            f"--kv int8 is Ascend's static cache, not for --target {target}; give --target "
            "ascend910b or leave it out"
        )
    architecture = architecture_of(config)
    if architecture.attention == "mla":
        raise UsageError(
            f"--kv int8: vllm-ascend has no int8 cache for MLA ({architecture.name}); leave it out"
        )
    if architecture.experts:
        raise UsageError(
            f"--kv int8: transformers, which finds the scales, has no {architecture.name}"
        )
    if tensor_parallel is not None:
        raise UsageError(
            "--kv int8 does not go with --tensor-parallel-size: each rank takes its heads' scales "
            "out of the whole ones; leave the latter out, serving can still be parallel"
        )


def is_cache_tensor(name: str) -> bool:
    """Whether a tensor is a scale or an offset of the cache."""
    return name.rsplit(".", 1)[-1] in (*SCALES, *OFFSETS)


def with_cache_scales(source: Source, calibration: Calibration) -> "CalibratedSource":
    """`source` with the scales of its cache among its tensors: runs the model on a text.

    Raises what `run_source` raises.
    """
    return CalibratedSource(source, observed_scales(run_source(source), calibration.text))


def observed_scales(running: Running, text: str) -> dict[str, "torch.Tensor"]:
    """Scales by name, float32 [key/value heads * head size]: the largest value of each channel
    is 127, the scale rounded to bfloat16, which the engine may keep it in."""
    import torch

    largest = _largest(running, text)
    scales: dict[str, torch.Tensor] = {}
    for layer, pair in largest.items():
        for name, offset, found in zip(SCALES, OFFSETS, pair, strict=True):
            prefix = f"model.layers.{layer}.self_attn.attn."
            scale = (found.flatten().float() / LIMIT).to(torch.bfloat16).float()
            if not torch.isfinite(scale).all():
                raise CheckFailedError(
                    f"{prefix}{name}: the model gives values that are no finite numbers; "
                    "check its weights, or leave --kv out"
                )
            scales[prefix + name] = torch.where(scale > 0, scale, 1.0)
            scales[prefix + offset] = torch.zeros_like(scale)
    return scales


def _largest(running: Running, text: str) -> dict[int, list["torch.Tensor"]]:
    """For each layer the largest magnitudes of keys and of values, [heads, head size]."""
    import torch
    from transformers import DynamicCache

    largest: dict[int, list[torch.Tensor]] = {}

    class Observer(DynamicCache):  # type: ignore[misc]
        def update(
            self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            found = [states.abs().amax((0, 2)) for states in (keys, values)]
            before = largest.get(layer_idx, found)
            largest[layer_idx] = [torch.maximum(*p) for p in zip(before, found, strict=True)]
            return keys, values

    with torch.inference_mode():
        for window in running.windows(text, MOST_TOKENS):
            running.model(window, past_key_values=Observer(), use_cache=True)
    return largest


class CalibratedSource:
    """See `tunan.checkpoint.source.Source`: another source and the scales of its cache."""

    def __init__(self, source: Source, scales: CacheScales) -> None:
        self._source = source
        self._scales = dict(scales)
        self.path, self.config, self.auxiliary = source.path, source.config, source.auxiliary
        file = next(iter(source.tensors.values())).file
        own = {name: TensorInfo(name, tuple(t.shape), "F32", 0, file) for name, t in scales.items()}
        self.tensors = {**source.tensors, **own}

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """See `Source.rows`."""
        if name in self._scales:
            return self._scales[name][start:stop]
        return self._source.rows(name, start, stop)

    def fingerprint(self) -> str:
        """Other scales make another checkpoint."""
        digest = hashlib.sha256(self._source.fingerprint().encode())
        for name, scale in sorted(self._scales.items()):
            digest.update(name.encode() + scale.numpy().tobytes())
        return digest.hexdigest()

    def release(self, name: str) -> None:
        """See `Source.release`."""
        if name not in self._scales:
            self._source.release(name)


def in_layer_order(names: tuple[str, ...], tensors: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    """`names` with the cache's tensors after each layer's last one."""
    cache: dict[int | None, list[str]] = {}
    for name in tensors:
        if is_cache_tensor(name):
            cache.setdefault(layer_of(name), []).append(name)
    ordered: list[str] = []
    for name, following in zip(names, (*names[1:], ""), strict=True):
        ordered.append(name)
        if layer_of(name) != layer_of(following):
            ordered += cache.pop(layer_of(name), [])
    return tuple(ordered)
