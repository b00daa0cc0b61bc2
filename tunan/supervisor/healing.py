"""What is changed between two starts of an engine after an error that a change mends.

The remedies, and how far each goes, are `tunan.diagnosis.remedy`'s: a remedy gives up speed or
length, never correctness, and each is applied once to a replica.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunan.config import Deployment
from tunan.diagnosis import Remedy, diagnose, remedy_for
from tunan.errors import TunanError
from tunan.supervisor.launch import Launch, Relaunch

# vLLM's flags for what the remedies set: where the user gave one after `--`, it stays his.
_FLAGS = {
    "lower utilization": ("--gpu-memory-utilization", "--kv-cache-memory-bytes"),
    "fewer batched tokens": ("--max-num-batched-tokens",),
    "shorter context": ("--max-model-len",),
}


@dataclass(frozen=True)
class Healed:
    """How to start next: `launch` is `remedy.deployment`'s. `cause`: the entry that was found."""

    cause: str
    remedy: Remedy
    launch: Launch


@dataclass
class Healing:
    """The remedies that one replica has had."""

    relaunch: Relaunch
    _applied: set[str] = field(default_factory=set, init=False)
    _environment: dict[str, str] = field(default_factory=dict, init=False)

    def after(self, log: Path, deployment: Deployment, launch: Launch) -> Healed | None:
        """A change for what the `log` of a failed start with `launch` says; None if there is none.

        Reads all of the log: seconds for a hundred megabytes.
        """
        try:
            diagnosis = diagnose([log])
        except OSError:
            return None
        self._applied |= _not_ours(deployment)
        while remedy := remedy_for(diagnosis, deployment, applied=self._applied):
            self._applied.add(remedy.kind)
            if next_launch := self._launched(remedy, launch):
                return Healed(diagnosis.id, remedy, next_launch)
        return None

    def _launched(self, remedy: Remedy, before: Launch) -> Launch | None:
        """The launch with `remedy`; None if it would be the same again, or cannot be."""
        if _exported(remedy.environment):
            return None
        try:
            launch = self.relaunch(remedy.deployment)
        except TunanError:
            return None
        environment = self._environment | dict(remedy.environment)
        launch = replace(launch, environment=launch.environment | environment)
        waits = remedy.wait_s and launch.devices  # on a CPU there is nothing to wait for
        if launch == before and not waits:
            return None
        self._environment = environment
        return launch


def _not_ours(deployment: Deployment) -> set[str]:
    """The kinds of remedy that would change what the user, or a request, relies on."""
    given = {
        argument.split("=", 1)[0].replace("_", "-") for argument in deployment.engine_arguments
    }
    kinds = {kind for kind, flags in _FLAGS.items() if given.intersection(flags)}
    if deployment.memory.kv_cache_gib is not None:  # which is what vLLM goes by then
        kinds.add("lower utilization")
    if deployment.replicas.managed + len(deployment.replicas.elsewhere) > 1:
        kinds.add("shorter context")  # what one replica takes the others must take too
    return kinds


def _exported(environment: Mapping[str, str]) -> bool:
    """Whether the user has set one of the variables, which wins over ours."""
    return any(name in os.environ for name in environment)
