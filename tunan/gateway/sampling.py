"""What makes the tokens of a request depend on its ids alone, so that another replica can go on.

Greedy tokens do as they are. Sampled ones do with Tunan's sampler in the replicas
(`tunan/engine/sampling`), whose noise is a function of a seed and the absolute position.
"""

import secrets
from typing import Any

# As in tunan.engine.sampling, which cannot be imported where there is no vLLM.
SEED = "tunan_seed"
PROMPT_TOKENS = "tunan_prompt_tokens"


def greedy(body: dict[str, Any]) -> bool:
    """Whether the request is greedy by its own words: the model's default may be to sample."""
    temperature = body.get("temperature")
    return isinstance(temperature, int | float) and temperature == 0


def sampling_for_resume(body: dict[str, Any], sampler: bool) -> dict[str, Any] | None:
    """What `body` needs on top so that it can be resumed; None if it cannot be.

    `sampler`: the replicas have Tunan's sampler. The seed is the client's, else a fresh one.
    """
    if greedy(body):
        return {}
    if not sampler:
        return None
    given = body.get("vllm_xargs") or {}
    if SEED in given:
        return {}
    seed = body.get("seed")
    return {"vllm_xargs": {**given, SEED: secrets.randbits(62) if seed is None else seed}}


def continued_sampling(body: dict[str, Any], prompt_tokens: int, sampler: bool) -> dict[str, Any]:
    """What a continuation says on top: where its client's prompt ended, for the penalties."""
    if not sampler:
        return {}
    return {"vllm_xargs": {**(body.get("vllm_xargs") or {}), PROMPT_TOKENS: prompt_tokens}}
