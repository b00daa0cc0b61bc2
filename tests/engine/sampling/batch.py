"""vLLM's own sampler over made-up logits, with and without our plugins. Runs in a vLLM process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from tunan.engine.sampling.continued import ContinuedOutput
from tunan.engine.sampling.seeded import SeededSampling

CPU = torch.device("cpu")


@dataclass
class Request:
    """A request as the engine's batch holds it."""

    params: SamplingParams
    prompt: list[int] | None = field(default_factory=lambda: [1, 2, 3])
    output: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, prompt: list[int] | None = None, output: Sequence[int] = (), **options: Any) -> Any:
        """`vllm_xargs` and the rest as parameters."""
        xargs = {name: options.pop(name) for name in list(options) if name.startswith("tunan_")}
        params = SamplingParams(**options, extra_args=xargs or None)
        return cls(params, prompt or [1, 2, 3], list(output))


def plugin(kind: type[LogitsProcessor], rows: int, mode: str = "raw_logprobs") -> LogitsProcessor:
    """One of our plugins, or of vLLM's processors, made as vLLM does."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(logprobs_mode=mode),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
    )
    return kind(config, CPU, False)


def processors(requests: Sequence[Request], *, mode: str = "raw_logprobs") -> LogitsProcessors:
    """vLLM's min_p and our plugins, which have seen `requests` join."""
    made = [
        plugin(kind, len(requests), mode)
        for kind in (MinPLogitsProcessor, ContinuedOutput, SeededSampling)
    ]
    added = [(i, r.params, r.prompt, r.output) for i, r in enumerate(requests)]
    for one in made:
        one.update_state(BatchUpdate(len(requests), removed=[], added=added, moved=[]))
    return LogitsProcessors(made)


def sample(
    logits: torch.Tensor,
    requests: Sequence[Request],
    *,
    mode: str = "raw_logprobs",
    logprobs: int | None = None,
) -> Any:
    """vLLM's `SamplerOutput` of one step over `logits`, float32 [requests, vocabulary]."""
    metadata = _metadata(requests, logits.shape[1], processors(requests, mode=mode), logprobs)
    return Sampler(mode)(logits.clone(), metadata)


def tokens(logits: torch.Tensor, requests: Sequence[Request], **options: Any) -> list[int]:
    """The token of each request."""
    drawn: list[int] = sample(logits, requests, **options).sampled_token_ids[:, 0].tolist()
    return drawn


def _metadata(
    requests: Sequence[Request], vocabulary: int, made: LogitsProcessors, logprobs: int | None
) -> SamplingMetadata:
    """As `InputBatch._make_sampling_metadata` puts it together."""
    params = [request.params for request in requests]
    temperature = torch.tensor([p.temperature for p in params])
    top_k = [p.top_k if 0 < p.top_k < vocabulary else vocabulary for p in params]
    top_p = torch.tensor([p.top_p for p in params])
    presence = torch.tensor([p.presence_penalty for p in params])
    frequency = torch.tensor([p.frequency_penalty for p in params])
    repetition = torch.tensor([p.repetition_penalty for p in params])
    penalised = bool(presence.any() or frequency.any() or (repetition != 1).any())
    greedy = bool((temperature < 1e-5).all())
    return SamplingMetadata(
        temperature=None if greedy else temperature,
        all_greedy=greedy,
        all_random=bool((temperature >= 1e-5).all()),
        top_p=top_p if float(top_p.min()) < 1 else None,
        top_k=torch.tensor(top_k) if min(top_k) < vocabulary else None,
        generators={
            i: torch.Generator().manual_seed(p.seed)
            for i, p in enumerate(params)
            if p.seed is not None
        },
        max_num_logprobs=logprobs,
        no_penalties=not penalised,
        prompt_token_ids=_padded(requests, vocabulary) if penalised else None,
        frequency_penalties=frequency,
        presence_penalties=presence,
        repetition_penalties=repetition,
        output_token_ids=[request.output for request in requests],
        allowed_token_ids_mask=None,
        bad_words_token_ids={
            i: p.bad_words_token_ids for i, p in enumerate(params) if p.bad_words_token_ids
        },
        logitsprocs=made,
    )


def _padded(requests: Sequence[Request], vocabulary: int) -> torch.Tensor:
    prompts = [request.prompt or [] for request in requests]
    longest = max(len(prompt) for prompt in prompts)
    return torch.tensor([prompt + [vocabulary] * (longest - len(prompt)) for prompt in prompts])


def penalised_logits(logits: torch.Tensor, request: Request) -> torch.Tensor:
    """The logits that the sampler would draw from, [1, vocabulary]."""
    made = processors([request])
    metadata = _metadata([request], logits.shape[1], made, None)
    found: torch.Tensor = Sampler().apply_logits_processors(logits.clone(), metadata, False)
    return found
