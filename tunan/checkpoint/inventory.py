"""Holds what a source has against what its configuration says it must have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunan.checkpoint.architectures import (
    Shape,
    expected_tensors,
    is_recomputed,
    layer_of,
    mtp_layers,
    optional_number,
)
from tunan.errors import CheckFailedError

# Each of these has at least a tensor of its own.
COUNTS = ("num_hidden_layers", "n_routed_experts", "num_nextn_predict_layers")


@dataclass(frozen=True)
class Inventory:
    """The outcome of taking stock: names of the tensors to carry, in the order of use.

    `unexpected` are carried after the others and reported; `dropped` are recomputed by
    every engine; `mtp_absent` says that the configuration names multi-token-prediction
    layers the source was stored without, which nothing but speculative decoding misses.
    """

    names: tuple[str, ...]
    unexpected: tuple[str, ...]
    dropped: tuple[str, ...]
    mtp_absent: bool


def take_stock(config: Mapping[str, Any], found: Mapping[str, Shape]) -> Inventory:
    """Compares `found` (name to shape) with the tensors `config` asks for.

    Raises CheckFailedError that names a missing or misshapen tensor and says how many
    there are in all, and whatever `expected_tensors` raises.
    """
    _refuse_impossible_counts(config, len(found))
    expected = expected_tensors(config)
    mtp_absent = _drop_absent_mtp_layers(config, expected, found)
    missing = [name for name in expected if name not in found]
    if missing:
        raise CheckFailedError(
            f"{missing[0]} is missing, {len(missing)} of {len(expected)} tensors in all; "
            "fetch the source again or correct its config.json"
        )
    misshapen = [name for name, shape in expected.items() if tuple(found[name]) != shape]
    if misshapen:
        name = misshapen[0]
        raise CheckFailedError(
            f"{name} has shape {list(found[name])} where config.json asks for "
            f"{list(expected[name])}, {len(misshapen)} such tensors in all"
        )
    others = [name for name in found if name not in expected]
    unexpected = tuple(name for name in others if not is_recomputed(name))
    dropped = tuple(name for name in others if is_recomputed(name))
    return Inventory((*expected, *unexpected), unexpected, dropped, mtp_absent)


def _refuse_impossible_counts(config: Mapping[str, Any], tensors: int) -> None:
    """A damaged count would be spelled out tensor by tensor until memory runs out."""
    counts = {key: optional_number(config, key, 0) for key in COUNTS}
    for key, count in counts.items():
        if count > tensors:
            raise CheckFailedError(
                f"config.json says {key} is {count}, but there are {tensors} tensors in all; "
                "correct it or fetch the source again"
            )


def _drop_absent_mtp_layers(
    config: Mapping[str, Any], expected: dict[str, Shape], found: Mapping[str, Shape]
) -> bool:
    """Forgives multi-token-prediction layers that are absent as a whole; a layer of which
    only some tensors are there stays an error."""
    wanted = set(mtp_layers(config))
    mine = [name for name in expected if layer_of(name) in wanted]
    if not mine or any(name in found for name in mine):
        return False
    for name in mine:
        del expected[name]
    return True
