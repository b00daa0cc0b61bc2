"""Which of Tunan's CPU kernels this process uses: `TUNAN_CPU_KERNELS`, everything by default."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tunan.errors import UsageError

VARIABLE = "TUNAN_CPU_KERNELS"
PARTS = ("linear", "attention", "fused", "head")


@dataclass(frozen=True)
class Switch:
    """`linear`: W8A8 and W4A8 layers and experts; `attention`: our attention and the int8 KV cache;
    `fused`: whole decoder layers in one call, which needs the other two; `head`: an int8 head
    made while loading, which only those who ask get."""

    linear: bool = True
    attention: bool = True
    fused: bool = True
    head: bool = False

    @classmethod
    def none(cls) -> "Switch":
        """vLLM's own kernels only."""
        return cls(linear=False, attention=False, fused=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Switch":
        """`1` or unset: all but `head`; `0`: none, vLLM's own kernels; else some of PARTS, with
        commas.

        Raises UsageError for any other value.
        """
        value = environment.get(VARIABLE, "").strip()
        if value in ("", "1"):
            return cls()
        chosen = {part.strip() for part in value.split(",")} if value != "0" else set()
        if not chosen <= set(PARTS):
            raise UsageError(
                f"{VARIABLE}={value}: give 1 (the default), 0 (none) or some of {','.join(PARTS)}"
            )
        if "fused" in chosen and not {"linear", "attention"} <= chosen:
            raise UsageError(f"{VARIABLE}={value}: fused needs linear and attention too")
        if "head" in chosen and "fused" not in chosen:
            raise UsageError(f"{VARIABLE}={value}: head needs fused too")
        return cls(**{part: part in chosen for part in PARTS})
