"""Which tensors of a model are quantised, and how that is said to an engine.

Quantised are the projections of attention, MLPs and experts. Left as they are:

- embedding and head, which no engine here reads in int8 from this format;
- the router (`gate`): a wrong expert costs more than its few weights save;
- `kv_b_proj`: MLA multiplies its halves into queries and outputs (vllm-ascend 0.23 asserts that it
  is unquantised, `attention/mla_v1.py`);
- `kv_a_proj_with_mqa`, whose output is the cache of every later token, and `q_a_proj`, which
  engines fuse with it into one layer of one scheme;
- the indexer of V3.2, and what multi-token-prediction layers have beside a layer's own weights.

Every name that `IGNORED` does not match must be quantised: an engine builds int8 layers for all of
them, and vLLM copies floating point into int8 without a word.
"""

import re
from collections.abc import Mapping
from typing import Any

from tunan.checkpoint.architectures import Shape, architecture_of
from tunan.checkpoint.quantize.scheme import WeightScheme
from tunan.errors import UsageError

_EVERYWHERE = (r"lm_head",)
_LATENT = (r"re:.*\.kv_b_proj$", r"re:.*\.kv_a_proj_with_mqa$", r"re:.*\.q_a_proj$")
_ROUTER = (r"re:.*\.mlp\.gate$",)
_INDEXER = (r"re:.*\.indexer\..*",)
_PREDICTION = (r"re:.*\.eh_proj$", r"re:.*\.shared_head\.head$")

_ROW_PARALLEL = ("o_proj.weight", "down_proj.weight")
_PROJECTION = re.compile(r"^model\.layers\.\d+\.(self_attn|mlp)\..*_proj\.weight$")


def ignored(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The layers left as they are, as compressed-tensors' `ignore` names them: a layer's name,
    or `re:` and an expression."""
    architecture = architecture_of(config)
    patterns: tuple[str, ...] = _EVERYWHERE
    if architecture.attention == "mla":
        patterns += _LATENT + _PREDICTION
    if architecture.experts:
        patterns += _ROUTER
    if architecture.indexer:
        patterns += _INDEXER
    return patterns


def is_quantised(config: Mapping[str, Any], name: str, shape: Shape) -> bool:
    """Whether the tensor `name` is the weight of a quantised layer."""
    if len(shape) != 2 or not _PROJECTION.match(name):
        return False
    layer = name.removesuffix(".weight")
    return not any(_matches(layer, pattern) for pattern in ignored(config))


def check_groups(
    config: Mapping[str, Any], shapes: Mapping[str, Shape], scheme: WeightScheme, degree: int
) -> None:
    """Raises UsageError if groups do not divide the inputs of every quantised layer, whole or,
    where ranks share them out, cut in `degree`."""
    group = scheme.group
    if group is None:
        return
    for name, shape in shapes.items():
        if not is_quantised(config, name, shape):
            continue
        inputs = shape[1]
        if inputs % group:
            raise UsageError(
                f"{name}: its {inputs} inputs are not a multiple of the group size {group}; "
                "choose another --group-size"
            )
        if name.endswith(_ROW_PARALLEL) and inputs // degree % group:
            raise UsageError(
                f"{name}: each of {degree} ranks has {inputs // degree} of its inputs, no multiple "
                f"of the group size {group}; choose another --group-size or --tensor-parallel-size"
            )


def _matches(layer: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), layer) is not None
    return layer == pattern
