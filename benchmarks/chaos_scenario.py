"""What a chaos scenario may say (chaos_scenarios.yaml): a setup, events, and checks."""

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from tunan.config.section import Section

Limits = dict[str, Annotated[float, Field(strict=False)]]
SCENARIOS = Path(__file__).with_name("chaos_scenarios.yaml")


class Event(Section):
    """Something that happens once a share of the load's tokens has come.

    `kill`: a signal to a process of a replica: `api` answers HTTP, `core` runs the model,
    `worker` is one rank of it; or to the `gateway` that holds the shared address.
    `rollout`: `tunan rollout`. The others are of the TCP proxy before a replica of another
    machine: `cut` resets its connections, `black_hole` lets nothing through any more,
    `half_event`, `garbage` and `answer_500` break its answers; a second later it is well again.
    """

    at: float = Field(ge=0, le=1, strict=False)
    do: Literal["kill", "rollout", "cut", "black_hole", "half_event", "garbage", "answer_500"]
    signal: Literal["SIGKILL", "SIGTERM", "SIGSTOP"] = "SIGKILL"
    process: Literal["api", "core", "worker", "gateway"] = "api"
    replica: Literal["busiest", "other"] = "busiest"


class Scenario(Section):
    """`setup`: `active` (two active replicas of one `tunan serve`), `two ranks` (the same, of
    two ranks each, with a small random model), `standby` (one of each), `gateway` (`tunan gateway`
    before a TCP proxy before each of two `tunan serve`), or `gateways`
    (two of them in namespaces of their own, with an address that etcd's lease gives to one).

    `sustained`: the load goes on until the events are over and all replicas are ready again.
    `most`: the largest value of each figure that still passes.
    """

    name: str
    setup: Literal["active", "two ranks", "standby", "gateway", "gateways"] = "active"
    sustained: bool = False
    events: Annotated[tuple[Event, ...], Field(strict=False)] = ()
    most: Limits = Field(default={})


class Scenarios(Section):
    """The file."""

    most: Limits
    scenarios: Annotated[tuple[Scenario, ...], Field(strict=False)]


def read(path: Path = SCENARIOS) -> list[Scenario]:
    """The scenarios, each with the checks of all. Raises pydantic's ValidationError."""
    found = Scenarios.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    return [one.model_copy(update={"most": {**found.most, **one.most}}) for one in found.scenarios]
