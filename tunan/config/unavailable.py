"""Settings the schema knows and this version does not act on yet: an error, never silence."""

from collections.abc import Callable

from tunan.config.deployment import Deployment
from tunan.errors import UsageError

Check = tuple[str, Callable[[Deployment], bool], str]

_ON_ANY_TARGET: tuple[Check, ...] = (
    ("scheduler.policy: slo", lambda d: d.scheduler.policy == "slo", "use fcfs or priority"),
    ("scheduler.ttft_ms", lambda d: d.scheduler.ttft_ms is not None, "leave it out"),
    ("scheduler.tpot_ms", lambda d: d.scheduler.tpot_ms is not None, "leave it out"),
    ("memory.swap_gib", lambda d: d.memory.swap_gib > 0, "leave it at 0"),
)


def refuse_unavailable(deployment: Deployment) -> None:
    """Raises `UsageError` if `deployment` asks for something this version would ignore."""
    for key, asked, instead in _ON_ANY_TARGET:
        if asked(deployment):
            raise UsageError(f"`{key}` is not available in this version; {instead}")
