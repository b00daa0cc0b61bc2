"""Runs the checks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tunan.doctor.checks import CHECKS
from tunan.doctor.finding import MARKS, Finding, finding, lines_of, printable
from tunan.doctor.subject import Subject
from tunan.doctor.uses import uses
from tunan.doctor.wording import counted as plural


@dataclass(frozen=True)
class Examination:
    """Every finding that applies, and what the machine can be used for."""

    target: str
    machine: str
    findings: tuple[Finding, ...]
    uses: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing stands in the way of the service."""
        return not any(found.blocks for found in self.findings)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "target": self.target,
            "machine": self.machine,
            "passed": self.passed,
            "findings": [asdict(found) for found in self.findings],
            "uses": list(self.uses),
        }

    def text(self) -> str:
        """For people: one line a finding, what is wrong with its fix below."""
        begin = [f"target {self.target}: {self.machine}", ""]
        end = ["", "this machine can be used to", *(f"  {use}" for use in self.uses), ""]
        end.append(counted(self.findings))
        return "\n".join(map(printable, [*begin, *lines_of(self.findings), *end]))


def counted(findings: Sequence[Finding]) -> str:
    """`12 checks: 1 failed, 2 unknown`."""
    counts = {state: sum(f.state == state for f in findings) for state in MARKS}
    told = [f"{counts[s]} {s}" for s in ("failed", "warning", "unknown") if counts[s]]
    checks = plural(len(findings), "check")
    return f"{checks}: {', '.join(told)}" if told else f"{checks}, all well"


def examine(subject: Subject) -> Examination:
    """Asks every check that applies."""
    answers = [(check, check.look(subject)) for check in CHECKS]
    return Examination(
        target=subject.target,
        machine=_machine(subject),
        findings=tuple(finding(check, answer) for check, answer in answers if answer),
        uses=uses(subject),
    )


def _machine(subject: Subject) -> str:
    if subject.emulated:
        return f"{subject.emulated.describe()}, so drivers, CANN and devices are not checked"
    if not subject.devices:
        return f"no NPU seen: {subject.npus.error}" if subject.has_npu_tool else "no NPU seen"
    name = subject.chip.name if subject.chip else subject.devices[0].name or "unknown chips"
    return f"{len(subject.devices)} x {name}, as {subject.npus.source} tells"
