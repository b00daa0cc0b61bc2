"""The plugin that draws with noise of (seed, position, token): see the package's description.

vLLM applies temperature, penalties and min_p before a processor that keeps the argmax, and
top_k, top_p and its own draw after it. So this one applies top_k and top_p with vLLM's own
function, draws, and leaves the drawn token as the only possible one, which nothing after it
can change. Greedy requests never come here. Checked against vLLM 0.32 and 0.23.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

from tunan.engine.sampling import SEED
from tunan.engine.sampling.noise import choose, draw_of

_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class _Row:
    """A request in the batch. `output` is vLLM's own list, which grows."""

    seed: int
    top_k: int
    top_p: float
    prompt_length: int
    output: list[int]

    @property
    def draw(self) -> int:
        return draw_of(self.seed, self.prompt_length + len(self.output))


class SeededSampling(LogitsProcessor):  # type: ignore[misc]
    """Draws the tokens of the requests that carry `tunan_seed`."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError, which the client gets as a 400."""
        seed = (sampling_params.extra_args or {}).get(SEED)
        if seed is None:
            return
        if not isinstance(seed, int) or not _SMALLEST <= seed <= _LARGEST:
            raise ValueError(f"{SEED} must be an integer of 64 bits, not {seed!r}")
        if sampling_params.n > 1:
            raise ValueError(f"{SEED} draws the same answer n times; use seed with n > 1")

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        # What a processed mode returns would be the drawn token alone.
        self._drawing = str(vllm_config.model_config.logprobs_mode).startswith("raw")
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """True, though it changes what is drawn: greedy requests do not pass through it."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follows the batch."""
        if self._drawing:
            process_dict_updates(self._rows, batch_update, _row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits`: float32 [requests, vocabulary], changed in place and returned."""
        if not self._rows:
            return logits
        rows = list(self._rows.values())
        places = torch.tensor(list(self._rows), device=logits.device)
        chosen = choose(_filtered(logits[places], rows), [row.draw for row in rows])
        logits[places] = -torch.inf
        logits[places, chosen] = 0.0
        return logits


def _row(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> _Row | None:
    seed = (params.extra_args or {}).get(SEED)
    # A prompt of embeddings has no ids to continue from.
    if seed is None or prompt is None:
        return None
    return _Row(seed, params.top_k, params.top_p, len(prompt), output)


def _filtered(logits: torch.Tensor, rows: list[_Row]) -> torch.Tensor:
    """`logits` after top_k and top_p. A copy of the batch's, so changed in place."""
    vocabulary = logits.shape[1]
    top_k = [row.top_k if 0 < row.top_k < vocabulary else vocabulary for row in rows]
    limited = any(k < vocabulary for k in top_k)
    top_p = [row.top_p for row in rows]
    filtered: torch.Tensor = apply_top_k_top_p_pytorch(
        logits,
        torch.tensor(top_k, device=logits.device) if limited else None,
        torch.tensor(top_p, device=logits.device) if min(top_p) < 1.0 else None,
        allow_cpu_sync=logits.device.type == "cpu",
    )
    return filtered
