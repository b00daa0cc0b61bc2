"""Refuses what vLLM's compiled mode gets wrong around our kernels: layers with routed experts.

Seen with vLLM 0.32 and inductor on a tiny DeepSeek-V3 in W8A8: unfused layers around our experts
give other tokens, or none. Uncompiled, fused (which is not compiled), or of a dense model they
are right.
"""

from typing import Any

from tunan.errors import UsageError


def refuse_compiled_experts(config: Any, reason: str) -> None:
    """Raises `UsageError` if the model of vLLM's `config` is compiled; `reason`: why unfused."""
    if config.compilation_config.mode:
        raise UsageError(
            f"{reason}; compiled around quantised experts they give wrong tokens: leave out "
            "--no-enforce-eager"
        )
