"""Answers of a real engine, whole and continued from several cuts. Runs in a vLLM process."""

from typing import Any

from tests.engine.generation import prompts

TOKENS = 40
CUTS = (1, 7, 20, 39)
# Each but the last also as a continuation; xargs beside the parameters of vLLM.
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {"tunan_seed": 1},
    "limited": {"tunan_seed": 2, "temperature": 0.7, "top_k": 60, "top_p": 0.9, "min_p": 0.001},
    "penalised": {"tunan_seed": -3, "frequency_penalty": 0.8, "presence_penalty": 0.5},
    "repeated": {"tunan_seed": 2**63 - 1, "repetition_penalty": 1.2, "presence_penalty": 1.0},
    "greedy": {"temperature": 0.0, "frequency_penalty": 1.0, "repetition_penalty": 1.1},
    "vllm's seed": {"seed": 1},
}


def continue_all(question: dict[str, Any]) -> dict[str, Any]:
    """{"model": directory} -> for each request its answer and the cuts it goes on otherwise from.

    Every answer is generated beside others, and beside other others after a cut.
    """
    from vllm import LLM

    engine = LLM(
        model=question["model"],
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        max_model_len=256,
        max_num_seqs=8,
    )
    start = prompts()[2]
    whole = _generate(engine, [(start, TOKENS, options) for options in REQUESTS.values()])
    again = _generate(engine, [(start, TOKENS, REQUESTS["plain"])])
    places = [(i, cut) for cut in CUTS for i in range(len(REQUESTS))]
    rest = _generate(
        engine,
        [
            (
                start + whole[i][:cut],
                TOKENS - cut,
                {**list(REQUESTS.values())[i], "tunan_prompt_tokens": len(start)},
            )
            for i, cut in places
        ],
    )
    names = list(REQUESTS)
    changed: dict[str, list[int]] = {name: [] for name in names}
    for (i, cut), tokens in zip(places, rest, strict=True):
        if tokens != whole[i][cut:]:
            changed[names[i]].append(cut)
    return {
        "answers": dict(zip(names, whole, strict=True)),
        "again": again[0],
        "changed": changed,
    }


def _generate(engine: Any, wanted: list[tuple[list[int], int, dict[str, Any]]]) -> list[list[int]]:
    from vllm import SamplingParams

    params = [
        SamplingParams(
            max_tokens=tokens,
            ignore_eos=True,
            extra_args={k: v for k, v in options.items() if k.startswith("tunan_")} or None,
            **{k: v for k, v in options.items() if not k.startswith("tunan_")},
        )
        for _, tokens, options in wanted
    ]
    inputs = [{"prompt_token_ids": prompt} for prompt, _, _ in wanted]
    outputs = engine.generate(inputs, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]
