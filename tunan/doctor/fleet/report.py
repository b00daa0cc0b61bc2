"""What several machines say, each alone and between one another."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tunan.doctor.between import CHECKS
from tunan.doctor.examining import counted
from tunan.doctor.finding import Answer, Check, Finding, finding, lines_of, printable
from tunan.doctor.fleet.advice import advice
from tunan.doctor.fleet.connection import LostError
from tunan.doctor.fleet.machine import Machine
from tunan.doctor.fleet.visit import Visited
from tunan.doctor.wording import counted as plural

_REACHED = Check[Sequence[Machine]]("reached", "error", lambda _: None)


@dataclass(frozen=True)
class Report:
    """`visits`: each machine; `between`: the findings that compare them."""

    visits: tuple[Visited, ...]
    between: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing stands in the way of a service over these machines."""
        alone = [visit.examination for visit in self.visits]
        well = all(examination is not None and examination.passed for examination in alone)
        return well and not any(found.blocks for found in self.between)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "passed": self.passed,
            "machines": [
                {
                    "name": visit.name,
                    "error": visit.lost,
                    **(visit.examination.as_json() if visit.examination else {"passed": False}),
                }
                for visit in self.visits
            ],
            "between": [asdict(found) for found in self.between],
        }

    def text(self) -> str:
        """For people: each machine, then what they have in common."""
        parts: list[str] = []
        for visit in self.visits:
            told = visit.examination.text() if visit.examination else f"FAILED   {visit.lost}"
            parts += [f"== {visit.name}", *(printable(line) for line in told.split("\n")), ""]
        parts += ["== between the machines", *lines_of(self.between), "", counted(self.between)]
        return "\n".join(parts)


def reported(visits: Sequence[Visited]) -> Report:
    """Asks every check between the machines that were reached."""
    machines = [visit.machine for visit in visits if visit.machine]
    answers = [(_REACHED, _reached(visits))]
    if len(machines) > 1:
        answers += [(check, _asked(check, machines)) for check in CHECKS]
    found = tuple(finding(check, answer) for check, answer in answers if answer)
    return Report(tuple(visits), found)


def _reached(visits: Sequence[Visited]) -> Answer | None:
    if all(visit.machine and not visit.machine.live for visit in visits):
        return None
    lost = [f"{visit.name}: {visit.lost}" for visit in visits if visit.lost]
    needed = "every machine answers, over ssh without a password"
    fix = advice({visit.name: visit.lost for visit in visits if visit.lost}) if lost else None
    found = "; ".join(lost) if lost else plural(len(visits), "machine")
    return Answer(not lost, found, needed, fix)


def _asked(check: Check[Sequence[Machine]], machines: Sequence[Machine]) -> Answer | None:
    try:
        return check.look(machines)
    except LostError as error:
        return Answer(None, f"a machine was lost: {error}", "an answer of each machine")
