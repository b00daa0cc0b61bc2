"""What a user can choose about loading: vLLM's `--model-loader-extra-config`."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from tunan.errors import UsageError

Verify = Literal["auto", "full", "header"]


@dataclass(frozen=True)
class LoadOptions:
    """`verify`: how much of a block is checked before its weights are used.

    - "auto": size and header of every block, and the sha256 of those this process reads
      whole (a rank's own blocks, or the plain ones where there is but one rank), unless it
      was right before and the file was not written to since. Hashing runs beside the
      engine's own work;
    - "full": the sha256 of every block every time, even if that means to read more than is
      needed;
    - "header": size and header only.
    """

    verify: Verify = "auto"

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Raises UsageError, naming the nearest known key or the allowed values."""
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise UsageError(f"model_loader_extra_config: unknown key {key!r}; {hint}")
        options = cls(**given)
        if options.verify not in get_args(Verify):
            allowed = ", ".join(get_args(Verify))
            raise UsageError(
                f"model_loader_extra_config: verify is {options.verify!r}; one of {allowed}"
            )
        return options
