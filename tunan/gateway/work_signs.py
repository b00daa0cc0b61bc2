"""Whether an engine works, by its own counters: an answer that is not streamed says nothing.

vLLM's server writes them down with what each step of the engine sends it. They stand still when
the engine does, though the server goes on answering probes.
"""

import re

# vLLM 0.23 and 0.32. The gauge moves while a long prompt is read, which no counter tells before
# its end.
_SIGNS = re.compile(
    r"^vllm:(?:generation_tokens_total|prompt_tokens_total|iteration_tokens_total_count"
    r"|kv_cache_usage_perc)[{ ].*$",
    re.MULTILINE,
)


def work_signs(metrics: str) -> tuple[str, ...]:
    """The samples of `metrics` (Prometheus' text) that change while the engine works."""
    return tuple(_SIGNS.findall(metrics))
