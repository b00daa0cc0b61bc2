"""The names of what an engine can run on."""

from typing import Literal, get_args

Target = Literal[
    "auto",
    "cpu",
    "ascend910b",
    "ascend910b1",
    "ascend910b2",
    "ascend910b3",
    "ascend910b4",
    "ascend910b4-1",
    "ascend910c",
    "ascend310p",
]
TARGETS: tuple[str, ...] = get_args(Target)


def family_of(target: str) -> str:
    """The target whose operators a chip shares: `ascend910b3` -> `ascend910b`."""
    chip = target.removeprefix("ascend910b")
    return (
        "ascend910b"
        if target.startswith("ascend910b") and chip in ("1", "2", "3", "4", "4-1")
        else target
    )
