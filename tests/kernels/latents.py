"""A decoder layer of DeepSeek's kind, small, and what its single operators give."""

from dataclasses import dataclass, replace

import torch

from tests.kernels.experts import GROUPS, mixture
from tests.kernels.paged import Shape, unwritten_cache
from tunan.kernels.dense import dense, dense_of_batches
from tunan.kernels.kv_cache import PagedKVCache
from tunan.kernels.latent import LatentLayer, Mixture, StepArgument
from tunan.kernels.linear import (
    PackedLinear,
    QuantizedRows,
    linear,
    linear_quantized,
    pack_w4,
    pack_w8,
    quantize,
)
from tunan.kernels.mla import mla_attention, write_latent
from tunan.kernels.moe import run_experts
from tunan.kernels.norm import rms_norm, rms_norm_quantized, swiglu_quantized
from tunan.kernels.rope import rotate
from tunan.kernels.router import Routing, route

HEADS, NOPE, ROPE, VALUE, LATENT, RANK = 6, 32, 16, 48, 96, 72
HIDDEN, INTERMEDIATE, INNER, EXPERTS, BLOCK = 160, 200, 96, 8, 32
BIASED = Routing(
    top_k=3,
    groups=4,
    kept_groups=2,
    sigmoid=True,
    renormalise=True,
    scale=2.5,
    bias=torch.linspace(-0.1, 0.1, EXPERTS),
)
GREEDY = Routing(top_k=3)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed(outputs: int, inputs: int, seed: int, form: str) -> PackedLinear:
    made = torch.Generator().manual_seed(seed)
    group = GROUPS[form]
    limit = 8 if group else 128
    shape = (outputs, inputs)
    values = torch.randint(-limit, limit, shape, dtype=torch.int8, generator=made)
    size = inputs**-0.5 / limit * 2
    if not group:
        return pack_w8(values, torch.full((outputs,), size))
    return pack_w4(values, torch.full((outputs, -(-inputs // group)), size), group)


def layer(
    kind: str, dtype: torch.dtype = torch.bfloat16, form: str = "w8", *, down: str = "plain"
) -> LatentLayer:
    """`kind`: "dense" or "v2" (no latent of queries), "v3" (one, and a biased router), "routed" (no
    shared experts). `down`: whether the projection to the latents is "plain" or "packed"."""
    rank = RANK if kind in ("v3", "dense") else 0
    rows = rank + LATENT + ROPE
    angle = torch.arange(200)[:, None] * 100.0 ** (-torch.arange(0, ROPE, 2) / ROPE)
    # As vLLM has them: parts of one matrix.
    up = normal(HEADS, NOPE + VALUE, LATENT, seed=1, dtype=dtype) * LATENT**-0.5
    made = LatentLayer(
        input_norm=normal(HIDDEN, seed=2, dtype=dtype),
        post_norm=normal(HIDDEN, seed=3, dtype=dtype),
        query_norm=normal(rank, seed=4, dtype=dtype) if rank else None,
        latent_norm=normal(LATENT, seed=5, dtype=dtype),
        down=packed(rows, HIDDEN, 6, form)
        if down == "packed"
        else normal(rows, HIDDEN, seed=6, dtype=dtype) * HIDDEN**-0.5,
        query=packed(HEADS * (NOPE + ROPE), rank or HIDDEN, 7, form),
        to_latent=up[:, :NOPE],
        to_value=up[:, NOPE:],
        output=packed(HIDDEN, HEADS * VALUE, 8, form),
        cos_sin=torch.cat([angle.cos(), angle.sin()], -1).to(dtype),
        epsilon=1e-5,
        latent_epsilon=1e-6,
        scale=(NOPE + ROPE) ** -0.5,
        gate_up=packed(2 * INTERMEDIATE, HIDDEN, 9, form),
        down_mlp=packed(HIDDEN, INTERMEDIATE, 10, form),
        in_steps=kind != "v2",
    )
    if kind == "dense":
        return made
    gate_up, down_experts = mixture(form, EXPERTS, HIDDEN, INNER)
    mixed = Mixture(
        router=normal(EXPERTS, HIDDEN, seed=11, dtype=dtype) * HIDDEN**-0.5,
        routing=BIASED if kind == "v3" else GREEDY,
        gate_up=gate_up.packed,
        down=down_experts.packed,
        scale=1.0 if kind == "v3" else 1.5,
    )
    shared = {"gate_up": None, "down_mlp": None} if kind == "routed" else {}
    return replace(made, mixture=mixed, **shared)  # type: ignore[arg-type]


@dataclass
class Step:
    """Sequences of these lengths, each with one new token, over caches that are written already."""

    lengths: list[int]
    cache: PagedKVCache
    hidden: torch.Tensor
    residual: torch.Tensor

    def __post_init__(self) -> None:
        self.seq_lens = torch.tensor(self.lengths, dtype=torch.int32)
        self.query_start = torch.arange(len(self.lengths) + 1, dtype=torch.int32)
        self.table = 2 * torch.arange(len(self.lengths), dtype=torch.int32)[:, None]
        self.table = torch.cat([self.table, self.table + 1], 1)
        self.positions = torch.tensor([n - 1 for n in self.lengths])
        self.slots = torch.tensor([2 * BLOCK * i + n - 1 for i, n in enumerate(self.lengths)])

    def argument(self, *, first: bool = False) -> StepArgument:
        return StepArgument(
            hidden=self.hidden.data_ptr(),
            residual=self.residual.data_ptr(),
            positions=self.positions.data_ptr(),
            slots=self.slots.data_ptr(),
            query_start=self.query_start.data_ptr(),
            seq_lens=self.seq_lens.data_ptr(),
            block_table=self.table.data_ptr(),
            table_stride=self.table.stride(0),
            table_width=self.table.shape[1],
            sequences=len(self.lengths),
            tokens=len(self.lengths),
            decoded=len(self.lengths),
            first_layer=first,
        )

    def only(self, i: int) -> "Step":
        """Sequence i alone, in blocks of its own copy of the cache."""
        tensor = self.cache.tensor[2 * i : 2 * i + 2].clone()
        cache = PagedKVCache(tensor, LATENT + ROPE, ROPE)
        rows = slice(i, i + 1)
        return Step(
            [self.lengths[i]], cache, self.hidden[rows].clone(), self.residual[rows].clone()
        )


def step(
    lengths: list[int], dtype: torch.dtype = torch.bfloat16, cache_dtype: torch.dtype | None = None
) -> Step:
    shape = Shape(HEADS, 1, LATENT + ROPE, BLOCK, ROPE)
    cache = unwritten_cache(shape, 2 * len(lengths), cache_dtype or dtype)
    for i, length in enumerate(lengths):
        slots = 2 * BLOCK * i + torch.arange(length - 1)
        latent = normal(length - 1, LATENT, seed=100 + i, dtype=dtype)
        write_latent(latent, normal(length - 1, ROPE, seed=200 + i, dtype=dtype), cache, slots)
    tokens = len(lengths)
    return Step(
        lengths,
        cache,
        normal(tokens, HIDDEN, seed=20, dtype=dtype),
        normal(tokens, HIDDEN, seed=21, dtype=dtype),
    )


def attention(w: LatentLayer, given: Step, *, first: bool = False) -> None:
    """The half of a layer up to the output projection, one operator after the other."""
    if first:
        given.residual.copy_(given.hidden)
    x = rms_norm(given.hidden, w.input_norm, w.epsilon, None if first else given.residual)
    down = dense(x, w.down) if isinstance(w.down, torch.Tensor) else linear(x, w.down)
    if w.query_norm is None:
        query = linear(x, w.query)
    else:
        rows = rms_norm_quantized(down[:, :RANK], w.query_norm, w.latent_epsilon)
        query = product(rows, w.query, x.dtype)
        down = down[:, RANK:]
    query = query.view(-1, HEADS, NOPE + ROPE)
    latent = rms_norm(down[:, :LATENT], w.latent_norm, w.latent_epsilon)
    key = down[:, LATENT:].unsqueeze(1)
    rotated = query[..., NOPE:]
    rotate(given.positions, rotated, key, w.cos_sin, neox=w.neox, in_steps=w.in_steps)
    write_latent(latent, key[:, 0], given.cache, given.slots)
    nope = query[..., :NOPE].transpose(0, 1)
    absorbed = dense_of_batches(nope, w.to_latent, transposed=True).transpose(0, 1)
    found = mla_attention(
        torch.cat([absorbed, rotated], -1),
        given.cache,
        given.query_start,
        given.seq_lens,
        given.table,
        scale=w.scale,
    )
    values = dense_of_batches(found.transpose(0, 1), w.to_value).transpose(0, 1)
    given.hidden = linear(values.reshape(len(x), -1), w.output)


def mlp(w: LatentLayer, given: Step) -> None:
    """The other half."""
    x = rms_norm(given.hidden, w.post_norm, w.epsilon, given.residual)
    if w.mixture is None:
        given.hidden = feed_forward(w, quantize(x), x.dtype)
        return
    weights, chosen = route(dense(x, w.mixture.router), w.mixture.routing)
    routed = run_experts(x, chosen, weights, w.mixture.gate_up, w.mixture.down)
    routed *= w.mixture.scale
    shared = None if w.gate_up is None else feed_forward(w, quantize(x), x.dtype)
    given.hidden = routed if shared is None else shared + routed


def feed_forward(w: LatentLayer, rows: QuantizedRows, dtype: torch.dtype) -> torch.Tensor:
    assert w.gate_up is not None
    assert w.down_mlp is not None
    return product(swiglu_quantized(product(rows, w.gate_up, dtype)), w.down_mlp, dtype)


def product(rows: QuantizedRows, weights: PackedLinear, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(len(rows.scales), weights.outputs, dtype=dtype)
    return linear_quantized(rows, weights, out)
