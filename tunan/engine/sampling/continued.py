"""The plugin that lets penalties and bad words see through a cut: see the package's description.

On a continuation the tokens generated before the cut stand in the prompt, where vLLM's presence
and frequency penalties and its bad words do not look. vLLM applies its penalties right after
this processor: it changes the logits so that what comes out of them is what vLLM gives when
those tokens are counted as output. Both are computed by vLLM's own function; the repetition
penalty, which looks at the prompt too, has to be undone in between.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.ops.penalties import apply_all_penalties

from tunan.engine.sampling import PROMPT_TOKENS

# Newton's steps on a line with one kink, at 0: two find it, the rest take off rounding.
_STEPS = 4


@dataclass(frozen=True)
class _Row:
    """A continuation in the batch. `output` is vLLM's own list, which grows."""

    params: SamplingParams
    prompt: list[int]
    before_cut: list[int]
    output: list[int]

    @property
    def penalised(self) -> bool:
        """Whether vLLM's own penalties are not those of the whole answer."""
        return bool(self.params.presence_penalty or self.params.frequency_penalty)


class ContinuedOutput(LogitsProcessor):  # type: ignore[misc]
    """Counts the tokens before the cut as output, for requests with `tunan_prompt_tokens`."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError, which the client gets as a 400."""
        length = (sampling_params.extra_args or {}).get(PROMPT_TOKENS, 0)
        if not isinstance(length, int) or length < 0:
            raise ValueError(f"{PROMPT_TOKENS} must be a count of tokens, not {length!r}")

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """False: penalties decide greedy requests too."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follows the batch."""
        process_dict_updates(self._rows, batch_update, _row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits`: float32 [requests, vocabulary], changed in place and returned."""
        for place, row in self._rows.items():
            output = row.before_cut + row.output
            if row.params.bad_words_token_ids:
                bad_words = {0: row.params.bad_words_token_ids}
                apply_bad_words(logits[place : place + 1], bad_words, [output])
            if row.penalised:
                logits[place] = _corrected(logits[place : place + 1], row, output)[0]
        return logits


def _row(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> _Row | None:
    length = (params.extra_args or {}).get(PROMPT_TOKENS)
    if length is None or prompt is None or length >= len(prompt):
        return None
    row = _Row(params, prompt[:length], prompt[length:], output)
    return row if row.penalised or params.bad_words_token_ids else None


def _corrected(logits: torch.Tensor, row: _Row, output: list[int]) -> torch.Tensor:
    """What vLLM's penalties turn into the logits of the undisturbed request. [1, vocabulary]."""
    wanted = _penalised(logits, row.params, row.prompt, output)
    factor = row.params.repetition_penalty
    corrected = logits
    for _ in range(_STEPS):
        found = _penalised(corrected, row.params, row.prompt + row.before_cut, row.output)
        # Both are -inf where a token is ruled out, and to stay so. What differs was generated
        # before the cut, so the repetition penalty's factor lies on it both times.
        missing = torch.where(wanted == found, 0.0, wanted - found)
        corrected = corrected + missing * torch.where(corrected > 0, factor, 1 / factor)
    return corrected


def _penalised(
    logits: torch.Tensor, params: SamplingParams, prompt: list[int], output: list[int]
) -> torch.Tensor:
    device = logits.device
    penalties = (
        torch.tensor([value], device=device)
        for value in (
            params.presence_penalty,
            params.frequency_penalty,
            params.repetition_penalty,
        )
    )
    ids = torch.tensor([prompt], dtype=torch.int64, device=device)
    penalised: torch.Tensor = apply_all_penalties(logits.clone(), ids, *penalties, [output])
    return penalised
