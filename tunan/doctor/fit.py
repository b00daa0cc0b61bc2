"""The least memory a rank needs: an estimate from sizes alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunan.ascend.catalogue import Model
from tunan.config import Deployment

# Activations of a prefill chunk, captured graphs, CANN's and HCCL's buffers (two communicators of
# 2 x 200 MB each by default): not measured, for want of an NPU. Meant to be on the safe side.
RESERVE = 3 << 30
USUAL_TOKENS = 8192


@dataclass(frozen=True)
class Need:
    """Bytes a rank: its share of the weights, the cache of one sequence of `tokens`."""

    weights: int
    cache: int
    tokens: int

    @property
    def total(self) -> int:
        """With the engine's own memory."""
        return self.weights + self.cache + RESERVE


def need_of(deployment: Deployment, sizes: Mapping[str, Any]) -> Need:
    """Of a deployment whose checkpoint has `sizes` (see `Subject.checkpoint`)."""
    parallel = deployment.parallel
    tokens = min(deployment.model.max_model_len or int(sizes["max_len"]), int(sizes["max_len"]))
    # Multi-head latent attention keeps the whole latent on every rank of a stage.
    copy = parallel.tensor * parallel.pipeline
    split = parallel.pipeline if sizes.get("latent_attention") else copy
    # Copies share the routed experts and nothing else.
    shared = int(sizes.get("expert_weights") or 0) if parallel.data > 1 else 0
    return Need(
        weights=(int(sizes["weights"]) - shared) // copy + shared // parallel.world_size,
        cache=tokens * int(sizes["kv_bytes_per_token"]) // split,
        tokens=tokens,
    )


def smallest_degree(model: Model, weights: int, devices: int, room: float) -> int | None:
    """The least tensor-parallel degree at which `model` fits `devices` with `room` bytes each.

    `weights`: bytes of the type it is kept in; the cache is one sequence of 8192 tokens or of
    the model's longest. None if it does not fit.
    """
    tokens = min(USUAL_TOKENS, model.max_tokens)
    for degree in model.tensor:
        cache = tokens * model.kv_bytes // (degree if model.kv_split else 1)
        if degree <= devices and weights // degree + cache + RESERVE <= room:
            return degree
    return None
