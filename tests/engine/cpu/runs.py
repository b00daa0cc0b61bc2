"""Runs of a real engine in one process, for the tests of the CPU path. Runs in a vLLM process."""

import logging
from pathlib import Path
from typing import Any

TOKENS = 24


def generate_all(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One engine after another in this process; see `generate`."""
    return [generate(question) for question in questions]


def generate(question: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens of one engine, and what it said.

    {"model", "prompts", "rounds"?: each a list of prompts asked together (default: all at
    once), "arguments"?} -> {"tokens", "blocks", "block_size", "preemptions", "log", "files",
    "private_kb", "chances": of every token the five best of its step, [token, log probability]};
    `log` is what Tunan said, `files` the packed files this process maps,
    `private_kb` how much of them is its own copy.
    """
    from vllm import LLM, SamplingParams

    logged = record_log()
    arguments: dict[str, Any] = {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 64 << 20,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "disable_log_stats": False,
    }
    engine = LLM(model=question["model"], **(arguments | question.get("arguments", {})))
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=5)
    tokens: list[list[int]] = []
    chances: list[list[list[tuple[int, float]]]] = []
    for prompts in question.get("rounds", [question["prompts"]]):
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = engine.generate(inputs, sampling, use_tqdm=False)
        tokens += [list(output.outputs[0].token_ids) for output in outputs]
        chances += [[_best(step) for step in output.outputs[0].logprobs] for output in outputs]
    cache = engine.llm_engine.vllm_config.cache_config
    files, private = _packed_mappings()
    return {
        "tokens": tokens,
        "chances": chances,
        "blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "preemptions": _counted(engine, "vllm:num_preemptions"),
        "log": logged,
        "files": files,
        "private_kb": private,
    }


def _best(step: Any) -> list[tuple[int, float]]:
    return [(token, found.logprob) for token, found in step.items()]


def _counted(engine: Any, name: str) -> int:
    """A counter of vLLM's, over all engines of this process so far."""
    return sum(int(metric.value) for metric in engine.get_metrics() if metric.name == name)


def record_log() -> list[str]:
    """What Tunan says from here on. vLLM drops handlers as it configures its log, not filters."""
    logged: list[str] = []

    def hear(record: logging.LogRecord) -> bool:
        logged.append(record.getMessage())
        return True

    logging.getLogger("vllm.tunan").filters = [hear]
    return logged


def _packed_mappings() -> tuple[list[str], int]:
    """The packed files in this process's memory, and the kB of them that are private to it."""
    files: set[str] = set()
    private, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            inside = "/packed-" in line
            if inside:
                files.add(line.split(maxsplit=5)[5])
        elif inside and first == "Private_Dirty:":
            private += int(line.split()[1])
    return sorted(files), private
