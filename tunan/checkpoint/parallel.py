"""Tensor parallelism: which rows and columns of which tensors make up a rank's parameters.

The layouts are those of vLLM 0.32 (`layers/linear.py`, `vocab_parallel_embedding.py`,
`fused_moe/`), under its parameter names, so that a block written for a rank holds exactly
what the engine keeps:

- column-parallel (q, k, v, gate, up, q_b, kv_b): rows are cut, fused ones laid one after
  another within each rank (`qkv_proj`, `gate_up_proj`);
- row-parallel (o, down): columns are cut, a bias stays whole;
- vocabulary-parallel (embedding, head): rows padded with zeros to a multiple of 64, then cut;
- experts: `w13_weight` [experts, 2 * I / N, hidden] and `w2_weight` [experts, hidden, I / N];
- whole on every rank: norms, router, latent projections (`fused_qkv_a_proj`), indexer.

With fewer key/value heads than ranks, neighbouring ranks hold the same head.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tunan.checkpoint.architectures import (
    Shape,
    architecture_of,
    expected_tensors,
    has_experts,
    head_size,
    key_value_heads,
    mtp_layers,
    number,
)
from tunan.errors import UsageError

VOCABULARY_PADDING = 64  # vLLM's DEFAULT_VOCAB_PADDING_SIZE
LARGEST_DEGREE = 128


# Millions of them are made for a large model and many ranks: slots halve their size.
@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, stop) of a source tensor, all columns or [columns[0], columns[1]) only.

    `tensor` None stands for rows of zeros. A vector's rows are its elements; a scalar is
    rows [0, 1).
    """

    tensor: str | None
    start: int
    stop: int
    columns: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class FusedParameter:
    """One parameter of one rank: its parts laid one after another, row by row.

    The leading dimensions of `shape` count rows: an experts' tensor [E, R, C] is E * R rows.
    """

    name: str
    shape: Shape
    parts: tuple[Part, ...]


def fused_parameters(
    config: Mapping[str, Any], tensor_parallel: int, rank: int, *, mtp: bool = True
) -> list[FusedParameter]:
    """The parameters of one rank, in order of use, fused and cut as vLLM keeps them.

    `mtp` includes the multi-token-prediction layers where the configuration has any. Raises
    UsageError if the degree does not divide the model (see `check_degree`).
    """
    check_degree(config, tensor_parallel)
    rule = _Rule(config, expected_tensors(config), tensor_parallel, rank)
    parameters = [rule.vocabulary("model.embed_tokens.weight")]
    for layer in range(number(config, "num_hidden_layers")):
        parameters += _layer(rule, layer)
    parameters.append(rule.whole("model.norm.weight"))
    if "lm_head.weight" in rule.shapes:
        parameters.append(rule.vocabulary("lm_head.weight"))
    if mtp and architecture_of(config).attention == "mla":
        for layer in mtp_layers(config):
            parameters += _layer(rule, layer)
            parameters += _mtp_extras(rule, f"model.layers.{layer}.")
    return parameters


def check_degree(config: Mapping[str, Any], tensor_parallel: int) -> None:
    """Raises UsageError, naming the degrees that do, if a degree does not divide the model."""
    obstacle = _obstacle(config, tensor_parallel)
    if obstacle:
        raise UsageError(
            f"tensor-parallel size {tensor_parallel} does not fit this model: {obstacle}; "
            f"sizes that do: {', '.join(map(str, degrees(config)))}"
        )


def degrees(config: Mapping[str, Any]) -> list[int]:
    """Every tensor-parallel degree up to 128 that the model can be cut into."""
    return [n for n in range(1, LARGEST_DEGREE + 1) if _obstacle(config, n) is None]


def padded_vocabulary(config: Mapping[str, Any]) -> int:
    """Rows of the embedding before it is cut: the vocabulary rounded up to 64."""
    return -(-number(config, "vocab_size") // VOCABULARY_PADDING) * VOCABULARY_PADDING


def _obstacle(config: Mapping[str, Any], degree: int) -> str | None:
    """What keeps the model from being cut `degree` ways, None if nothing does."""
    if degree < 1:
        return "it must be at least 1"
    for what, size in _divided_sizes(config):
        if size % degree:
            return f"{what} ({size}) is not a multiple of it"
    heads = key_value_heads(config)
    if architecture_of(config).attention == "gqa" and heads % degree and degree % heads:
        return f"key/value heads ({heads}) neither divide it nor are a multiple of it"
    return None


def _divided_sizes(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    yield "num_attention_heads", number(config, "num_attention_heads")
    layers = range(mtp_layers(config).stop)
    if not all(has_experts(config, layer) for layer in layers):
        yield "intermediate_size", number(config, "intermediate_size")
    if any(has_experts(config, layer) for layer in layers):
        yield "moe_intermediate_size", number(config, "moe_intermediate_size")
    yield "the vocabulary padded to 64", padded_vocabulary(config)


def _layer(rule: "_Rule", layer: int) -> Iterator[FusedParameter]:
    prefix = f"model.layers.{layer}."
    if architecture_of(rule.config).attention == "mla":
        yield from _latent_attention(rule, prefix + "self_attn.")
    else:
        yield from _plain_attention(rule, prefix + "self_attn.")
    yield rule.whole(prefix + "input_layernorm.weight")
    yield rule.whole(prefix + "post_attention_layernorm.weight")
    if has_experts(rule.config, layer):
        yield from _experts(rule, prefix + "mlp.")
    else:
        yield from _mlp(rule, prefix + "mlp.")


def _plain_attention(rule: "_Rule", prefix: str) -> Iterator[FusedParameter]:
    for kind in ("weight", "bias"):
        if f"{prefix}q_proj.{kind}" in rule.shapes:
            yield rule.query_key_value(prefix, kind)
    yield from _row_parallel(rule, prefix + "o_proj.")


def _latent_attention(rule: "_Rule", prefix: str) -> Iterator[FusedParameter]:
    latent = prefix + "kv_a_proj_with_mqa.weight"
    if prefix + "q_a_proj.weight" in rule.shapes:
        query = prefix + "q_a_proj.weight"
        yield rule.stacked(prefix + "fused_qkv_a_proj.weight", [query, latent])
        yield rule.whole(prefix + "q_a_layernorm.weight")
        yield rule.column(prefix + "q_b_proj.weight")
    else:
        yield rule.column(prefix + "q_proj.weight")
        yield rule.whole(latent)
    yield rule.whole(prefix + "kv_a_layernorm.weight")
    yield rule.column(prefix + "kv_b_proj.weight")
    yield from _row_parallel(rule, prefix + "o_proj.")
    if architecture_of(rule.config).indexer:
        indexer = prefix + "indexer."
        yield rule.whole(indexer + "wq_b.weight")
        key, weights = indexer + "wk.weight", indexer + "weights_proj.weight"
        yield rule.stacked(indexer + "wk_weights_proj.weight", [key, weights])
        yield rule.whole(indexer + "k_norm.weight")
        yield rule.whole(indexer + "k_norm.bias")


def _mlp(rule: "_Rule", prefix: str) -> Iterator[FusedParameter]:
    for kind in ("weight", "bias"):
        gate, up = f"{prefix}gate_proj.{kind}", f"{prefix}up_proj.{kind}"
        if gate in rule.shapes:
            yield rule.fused_columns(f"{prefix}gate_up_proj.{kind}", [gate, up])
    yield from _row_parallel(rule, prefix + "down_proj.")


def _row_parallel(rule: "_Rule", prefix: str) -> Iterator[FusedParameter]:
    yield rule.row(prefix + "weight")
    if prefix + "bias" in rule.shapes:  # added on rank 0 only, but kept whole everywhere
        yield rule.whole(prefix + "bias")


def _experts(rule: "_Rule", prefix: str) -> Iterator[FusedParameter]:
    yield rule.whole(prefix + "gate.weight")
    if prefix + "gate.e_score_correction_bias" in rule.shapes:
        yield rule.whole(prefix + "gate.e_score_correction_bias")
    yield from rule.experts(prefix + "experts.")
    if prefix + "shared_experts.gate_proj.weight" in rule.shapes:
        yield from _mlp(rule, prefix + "shared_experts.")


def _mtp_extras(rule: "_Rule", prefix: str) -> Iterator[FusedParameter]:
    yield rule.vocabulary(prefix + "embed_tokens.weight")
    for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm"):
        yield rule.whole(f"{prefix}{name}.weight")
    yield rule.vocabulary(prefix + "shared_head.head.weight")


@dataclass(frozen=True)
class _Rule:
    """How one rank of `degree` cuts a tensor; one method for each of vLLM's layer kinds."""

    config: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    degree: int
    rank: int

    def whole(self, name: str) -> FusedParameter:
        return self.stacked(name, [name])

    def stacked(self, fused: str, names: list[str]) -> FusedParameter:
        return _parameter(fused, self.shapes[names[0]][1:], [self._all_rows(n) for n in names])

    def column(self, name: str) -> FusedParameter:
        return self.fused_columns(name, [name])

    def fused_columns(self, fused: str, names: list[str]) -> FusedParameter:
        return _parameter(fused, self.shapes[names[0]][1:], [self._rows(n) for n in names])

    def row(self, name: str) -> FusedParameter:
        part = self._columns(name)
        return FusedParameter(name, (part.rows, self._share(self.shapes[name][1])), (part,))

    def vocabulary(self, name: str) -> FusedParameter:
        rows = self.shapes[name][0]
        share = padded_vocabulary(self.config) // self.degree
        start, stop = (min(rows, share * at) for at in (self.rank, self.rank + 1))
        parts = [Part(name, start, stop), Part(None, 0, share - (stop - start))]
        return _parameter(name, self.shapes[name][1:], [part for part in parts if part.rows])

    def query_key_value(self, prefix: str, kind: str) -> FusedParameter:
        size, heads = head_size(self.config), key_value_heads(self.config)
        first, count = self.rank * heads // self.degree, max(1, heads // self.degree)
        parts = [self._rows(f"{prefix}q_proj.{kind}")]
        for name in ("k_proj", "v_proj"):
            parts.append(Part(f"{prefix}{name}.{kind}", first * size, (first + count) * size))
        return _parameter(
            f"{prefix}qkv_proj.{kind}", self.shapes[f"{prefix}q_proj.{kind}"][1:], parts
        )

    def experts(self, prefix: str) -> Iterator[FusedParameter]:
        experts, hidden = (
            number(self.config, "n_routed_experts"),
            number(self.config, "hidden_size"),
        )
        share = self._share(number(self.config, "moe_intermediate_size"))
        gates_and_ups = [
            self._rows(f"{prefix}{expert}.{name}.weight")
            for expert in range(experts)
            for name in ("gate_proj", "up_proj")
        ]
        downs = [self._columns(f"{prefix}{expert}.down_proj.weight") for expert in range(experts)]
        yield FusedParameter(
            prefix + "w13_weight", (experts, 2 * share, hidden), tuple(gates_and_ups)
        )
        yield FusedParameter(prefix + "w2_weight", (experts, hidden, share), tuple(downs))

    def _share(self, size: int) -> int:
        return size // self.degree

    def _all_rows(self, name: str) -> Part:
        return Part(name, 0, self.shapes[name][0])

    def _rows(self, name: str) -> Part:
        share = self._share(self.shapes[name][0])
        return Part(name, self.rank * share, (self.rank + 1) * share)

    def _columns(self, name: str) -> Part:
        rows, columns = self.shapes[name]
        share = self._share(columns)
        cut = None if self.degree == 1 else (self.rank * share, (self.rank + 1) * share)
        return Part(name, 0, rows, cut)


def _parameter(name: str, trailing: Shape, parts: list[Part]) -> FusedParameter:
    return FusedParameter(name, (sum(part.rows for part in parts), *trailing), tuple(parts))
