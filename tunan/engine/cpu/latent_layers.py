"""The decoder layers of DeepSeek-V2 and V3 as one call each into the kernels.

What vLLM's own layer does in some fifty operations: norm, projections, rotation, cache write,
attention to the latents, output projection, residual and norm, then a dense MLP or routing, shared
and routed experts. The attention of prompts stays vLLM's, and so does all attention where vLLM's
kernel for AMX was chosen: a step with a prompt is two calls a layer with that between them.
Everything is rounded where vLLM's layer rounds it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tunan.engine.cpu.latent_weights import angles, latent_weights
from tunan.engine.cpu.mla import CpuMlaImpl
from tunan.kernels.kv_cache import CacheArgument
from tunan.kernels.latent import LatentLayer, Stage, StepArgument, latent_layer

AddUp = Callable[[torch.Tensor], torch.Tensor]
# Where a layer's KV cache lies: address, shape, strides.
CachePlace = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class LatentBatch:
    """positions, slots int64 [tokens]; vLLM's metadata of a step, which all layers share."""

    positions: torch.Tensor
    metadata: Any
    slots: torch.Tensor


class LatentLayers:
    """All decoder layers of a DeepSeek-V2 or V3, called one after another.

    `add_up`: of a rank among several, adds up what each has computed of a tensor and returns it.
    """

    def __init__(self, model: Any, dtype: torch.dtype, add_up: AddUp | None = None) -> None:
        layers = list(model.model.layers)
        self._add_up = add_up
        self._mlas = [layer.self_attn.mla_attn.mla_attn for layer in layers]
        # vLLM's names of the attention layers.
        self.names: tuple[str, ...] = tuple(mla.layer_name for mla in self._mlas)
        # vLLM makes one for all layers.
        table = angles(layers[0], dtype)
        self._weights = [latent_weights(layer, table) for layer in layers]
        self._ours = all(
            isinstance(mla.impl, CpuMlaImpl) and mla.impl.stock_because is None
            for mla in self._mlas
        )
        self._caches: list[CacheArgument | None] = [None] * len(layers)
        self._caches_at: list[CachePlace] = []

    def __call__(
        self, hidden: torch.Tensor, batch: LatentBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs every layer on the embedded tokens `hidden` [tokens, size].

        Returns (hidden, residual), both new, as vLLM's layers leave them for the last norm.
        """
        hidden = hidden.contiguous().clone()
        residual = torch.empty_like(hidden)
        if self._ours:
            self._bind_caches()
        step = _Step(hidden, residual, batch, self._weights[0], ours=self._ours)
        for weights, cache, mla in zip(self._weights, self._caches, self._mlas, strict=True):
            self._run(step, weights, cache, mla)
            step.argument.first_layer = 0
        return step.hidden, residual

    def _run(
        self, step: "_Step", weights: LatentLayer, cache: CacheArgument | None, mla: Any
    ) -> None:
        first = Stage.PROJECT
        if step.kept is not None:
            step.kept.attend(step, weights, cache, mla)
            first = Stage.OUTPUT
        if self._add_up is None:
            latent_layer(weights, cache, step.argument, first)
            return
        latent_layer(weights, cache, step.argument, first, Stage.OUTPUT)
        step.replace_hidden(self._add_up(step.hidden))
        latent_layer(weights, cache, step.argument, Stage.MLP)
        step.replace_hidden(self._add_up(step.hidden))

    def _bind_caches(self) -> None:
        """vLLM binds the caches after loading, and may bind others later, of any layer."""
        places = [_place(mla.kv_cache) for mla in self._mlas]
        if places != self._caches_at:
            self._caches = [mla.impl.cache(mla.kv_cache).argument() for mla in self._mlas]
            self._caches_at = places


class _Step:
    """What all layers share of a step; keeps alive what `argument` points to.

    `kept`: what lies between the calls of a layer, None where it is a single one.
    """

    def __init__(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        batch: LatentBatch,
        like: LatentLayer,
        *,
        ours: bool,
    ) -> None:
        metadata, tokens = batch.metadata, len(hidden)
        self.hidden, self.batch = hidden, batch
        alone = ours and not metadata.num_prefills
        self.kept = None if alone else _Kept(hidden, like, ours=ours)
        self.argument = StepArgument(
            hidden=hidden.data_ptr(),
            residual=residual.data_ptr(),
            positions=batch.positions.data_ptr(),
            slots=batch.slots.data_ptr(),
            tokens=tokens,
            first_layer=1,
        )
        if self.kept is not None:
            self.kept.add_to(self.argument)
        if ours and metadata.num_decodes:
            self._add_decoding(metadata)

    def _add_decoding(self, metadata: Any) -> None:
        decodes = metadata.num_decodes
        # Of any type in vLLM, and of more rows than sequences where it pads.
        self._starts = metadata.query_start_loc[: decodes + 1].to(torch.int32).contiguous()
        self._lengths = metadata.decode.seq_lens.to(torch.int32).contiguous()
        self._table = metadata.decode.block_table.to(torch.int32).contiguous()
        made = self.argument
        made.query_start, made.seq_lens = self._starts.data_ptr(), self._lengths.data_ptr()
        made.block_table, made.table_stride = self._table.data_ptr(), self._table.stride(0)
        made.table_width, made.sequences = self._table.shape[1], decodes
        made.decoded = metadata.num_decode_tokens

    def replace_hidden(self, hidden: torch.Tensor) -> None:
        """Adding up may give a new tensor."""
        self.hidden = hidden.contiguous()
        self.argument.hidden = self.hidden.data_ptr()


class _Kept:
    """What lies between the two calls of a layer in a step that vLLM attends in too."""

    def __init__(self, hidden: torch.Tensor, like: LatentLayer, *, ours: bool) -> None:
        heads, nope, latent = like.to_latent.shape
        rope, tokens = like.cos_sin.shape[1], len(hidden)
        self._ours, self._latent = ours, like.query_rank + latent
        self._down = hidden.new_empty(tokens, self._latent + rope)
        self._query = hidden.new_empty(tokens, heads, nope + rope)
        self._attended = hidden.new_empty(tokens, heads * like.to_value.shape[1])
        self._rank = like.query_rank

    def add_to(self, step: StepArgument) -> None:
        step.down, step.query = self._down.data_ptr(), self._query.data_ptr()
        step.attended = self._attended.data_ptr()

    def attend(
        self, step: _Step, weights: LatentLayer, cache: CacheArgument | None, mla: Any
    ) -> None:
        """All of a layer up to its output projection."""
        metadata = step.batch.metadata
        last = Stage.ATTEND if self._ours else Stage.PROJECT
        latent_layer(weights, cache, step.argument, Stage.PROJECT, last)
        latent = self._down[:, self._rank : self._latent].contiguous()
        key = self._down[:, self._latent :].contiguous().unsqueeze(1)
        if self._ours:
            rows = slice(metadata.num_decode_tokens, metadata.num_actual_tokens)
            of_prompts = self._query[rows], latent[rows], key[rows], mla.kv_cache, metadata
            mla.impl.forward_mha(*of_prompts, mla._k_scale, output=self._attended[rows])
            return
        slots = step.batch.slots
        mla.impl.do_kv_cache_update(
            latent, key, mla.kv_cache, slots, mla.kv_cache_dtype, mla._k_scale
        )
        mla.forward_impl(self._query, latent, key, mla.kv_cache, metadata, output=self._attended)


def _place(cache: torch.Tensor) -> CachePlace:
    return cache.data_ptr(), tuple(cache.shape), cache.stride()
