"""Sampling that another engine can go on with: two `vllm.logits_processors` plugins.

vLLM's own seeded sampling draws from a generator that starts with the request, so an answer
continued elsewhere, with all ids so far as its prompt, draws other tokens. Here the noise of a
token depends only on the seed, the token's absolute position (how many ids stand before it)
and its id, so the continuation draws the same ones; the distribution stays vLLM's.

What a request says, in `vllm_xargs` of /v1/completions and /v1/chat/completions:

`tunan_seed`: int, -2**63 to 2**63 - 1
    Draws this answer with position-keyed noise. Everything else of the request stands as it
    is: temperature, top_k, top_p, min_p, penalties, logit_bias, min_tokens. With temperature 0
    it changes nothing. `seed` may be left out: it would only cost the engine a generator.
    Refused (400) with n > 1, whose answers would all be the same: leave that one to `seed`.
`tunan_prompt_tokens`: int >= 0
    On a continuation: how many ids of `prompt` are the client's prompt; the rest of it was
    generated. Penalties and `bad_words` then treat the rest as output, as they did before the
    cut. Needed only with `presence_penalty`, `frequency_penalty`, `repetition_penalty` or
    `bad_words`; harmless otherwise, and for greedy requests as well as sampled ones.

A continuation is a /v1/completions request whose `prompt` is the ids of the prompt and of all
tokens received, with the same `tunan_seed` and sampling parameters, and with `max_tokens` and
`min_tokens` less the tokens received. Ask with `return_token_ids: true` to know the ids.

What these plugins do not make exact across a cut, because vLLM counts it from the start of a
request: structured output, thinking budgets (`thinking_token_budget`), `repetition_detection`.
With speculative decoding vLLM loads no plugin of this kind, and its model runner V2 takes only
plugins written for it (here: `VLLM_USE_V2_MODEL_RUNNER=0`; without triton vLLM chooses that).
Returned logprobs are right in vLLM's default `--logprobs-mode` (`raw_logprobs`, before
sampling). Under a `processed_` mode, which returns what the sampler sees, drawing is left to
vLLM, and answers that are sampled do not continue exactly.
"""

SEED = "tunan_seed"
PROMPT_TOKENS = "tunan_prompt_tokens"
