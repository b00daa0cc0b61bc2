"""Greedy generation by vLLM and by transformers, to compare. Runs in a vLLM process."""

import math
from typing import Any

import torch

TOKENS = 64
PROMPT_LENGTHS = (1, 5, 17, 33, 64, 100)


def prompts(vocabulary: int = 1000) -> list[list[int]]:
    """Prompts as token ids, none of them special."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(4, vocabulary, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS
    ]


TEXTS = (
    "The capital of France is",
    "Write a short story about a boat that sails south.\n\nOnce upon a time",
    "def fibonacci(n):\n",
)


def compare_all(question: dict[str, Any]) -> dict[str, Any]:
    """{"models": {name: directory}, "dtype": ...} -> {name: divergences by prompt}."""
    return {
        name: compare(directory, question["dtype"], real=name in question.get("real", []))
        for name, directory in question["models"].items()
    }


def compare(directory: str, dtype: str, *, real: bool = False) -> list[dict[str, Any] | None]:
    """For each prompt None, or where vLLM and transformers part ways and by how little.

    `real`: the model knows language, so it is asked in words, `TEXTS`.
    """
    reference = _reference_model(directory, dtype)
    questions = _tokenised(directory) if real else prompts()
    expected = [_continue(reference, prompt) for prompt in questions]
    found = vllm_tokens({"model": directory, "dtype": dtype}, questions)
    return [_divergence(reference, *case) for case in zip(questions, expected, found, strict=True)]


def vllm_tokens(
    question: dict[str, Any], questions: list[list[int]] | None = None
) -> list[list[int]]:
    """What vLLM generates after each prompt; `question` are arguments of `vllm.LLM`."""
    from vllm import LLM, SamplingParams

    if question.get("dtype") == "float32":  # with AMX vLLM would take a kernel of bfloat16 for MLA
        question = {"attention_backend": "CPU_MLA", **question}
    engine = LLM(
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        max_model_len=256,
        max_num_seqs=8,
        **{"load_format": "tunan", **question},
    )
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    inputs = [{"prompt_token_ids": prompt} for prompt in questions or prompts()]
    outputs = engine.generate(inputs, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def _tokenised(directory: str) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    return [tokenizer(text)["input_ids"] for text in TEXTS]


def _reference_model(directory: str, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), attn_implementation="eager"
    )
    return model.eval()


@torch.no_grad()
def _continue(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=1,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


@torch.no_grad()
def _divergence(
    reference: Any, prompt: list[int], expected: list[int], found: list[int]
) -> dict[str, Any] | None:
    at = next(
        (i for i, pair in enumerate(zip(expected, found, strict=True)) if len({*pair}) > 1), -1
    )
    if at < 0:
        return None
    logits = reference(torch.tensor([prompt + expected[:at]])).logits[0, -1].float()
    gap = (logits[expected[at]] - logits[found[at]]).item()
    return {
        "token": at,
        "gap_in_deviations": round(gap / logits.std().item(), 5),
        "gap_in_bfloat16_steps": round(gap / _bfloat16_step(logits[expected[at]].item()), 2),
    }


def _bfloat16_step(value: float) -> float:
    """The distance from `value` to the next bfloat16, which has 8 significant bits."""
    return float(2.0 ** (math.floor(math.log2(max(abs(value), 1e-30))) - 7))
