"""Greedy generation by vLLM and by transformers, to compare. Runs in a vLLM process."""

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


def compare_all(question: dict[str, Any]) -> dict[str, Any]:
    """{"models": {name: directory}, "dtype": ...} -> {name: divergences by prompt}."""
    return {
        name: compare(directory, question["dtype"])
        for name, directory in question["models"].items()
    }


def compare(directory: str, dtype: str) -> list[dict[str, Any] | None]:
    """For each prompt None, or where vLLM and transformers part ways and by how little."""
    reference = _reference_model(directory, dtype)
    questions = prompts()
    expected = [_continue(reference, prompt) for prompt in questions]
    found = vllm_tokens({"model": directory, "dtype": dtype})
    return [_divergence(reference, *case) for case in zip(questions, expected, found, strict=True)]


def vllm_tokens(question: dict[str, Any]) -> list[list[int]]:
    """What vLLM generates after each of `prompts`; `question` are arguments of `vllm.LLM`."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        max_model_len=256,
        max_num_seqs=8,
        **{"load_format": "tunan", **question},
    )
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts()]
    outputs = engine.generate(inputs, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


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
    return {"token": at, "gap_in_deviations": gap / logits.std().item()}
