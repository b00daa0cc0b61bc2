"""Runs the checks."""

from dataclasses import asdict, dataclass
from typing import Any

from tunan.doctor.checks import CHECKS
from tunan.doctor.finding import Finding, finding
from tunan.doctor.subject import Subject
from tunan.doctor.uses import uses

_MARKS = {
    "ok": "ok",
    "failed": "FAILED",
    "warning": "warning",
    "unknown": "unknown",
    "note": "note",
}


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
        width = max(len(found.id) for found in self.findings)
        lines = [f"target {self.target}: {self.machine}", ""]
        for found in self.findings:
            lines.append(f"{_MARKS[found.state]:<8} {found.id:<{width}}  {found.found}")
            if found.state != "ok":
                lines.append(f"{'':<9}{'':<{width}}  needed: {found.needed}")
                lines += [f"{'':<9}{'':<{width}}  fix: {found.fix}"] if found.fix else []
        lines += ["", "this machine can be used to", *(f"  {use}" for use in self.uses), ""]
        return "\n".join(map(_printable, [*lines, self._conclusion()]))

    def _conclusion(self) -> str:
        counts = {state: sum(f.state == state for f in self.findings) for state in _MARKS}
        told = [f"{counts[s]} {s}" for s in ("failed", "warning", "unknown") if counts[s]]
        checks = f"{len(self.findings)} checks"
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


def _printable(line: str) -> str:
    """What tools print, or another's bundle holds, may have control characters in it, which a
    terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in line)


def _machine(subject: Subject) -> str:
    if subject.emulated:
        return f"{subject.emulated.describe()}, so drivers, CANN and devices are not checked"
    if not subject.devices:
        return f"no NPU seen: {subject.npus.error}" if subject.has_npu_tool else "no NPU seen"
    name = subject.chip.name if subject.chip else subject.devices[0].name or "unknown chips"
    return f"{len(subject.devices)} x {name}, as {subject.npus.source} tells"
