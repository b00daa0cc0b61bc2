"""Runs the checks."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tunan.ascend.probes.programs import end_running
from tunan.ascend.probes.sight import Sight
from tunan.doctor.checks import CHECKS, of_ports
from tunan.doctor.finding import MARKS, Answer, Check, Finding, finding, lines_of, printable
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
    ahead: dict[Check[Subject], Answer | None] = {}

    def look_at_ports() -> None:
        ahead.update({check: check.look(subject) for check in of_ports()})

    # hccn_tool takes as long as npu-smi, and each is asked once at a time.
    if subject.sight.side_by_side and subject.devices:
        answers = _beside(look_at_ports, subject.sight, lambda: _answers(subject, of_ports()))
    else:
        answers = _answers(subject, ())
    answers |= ahead
    return Examination(
        target=subject.target,
        machine=_machine(subject),
        findings=tuple(finding(check, answer) for check in CHECKS if (answer := answers[check])),
        uses=uses(subject),
    )


Answers = dict[Check[Subject], Answer | None]


def _answers(subject: Subject, left_out: Sequence[Check[Subject]]) -> Answers:
    return {check: check.look(subject) for check in CHECKS if check not in left_out}


def _beside(work: Callable[[], None], sight: Sight, rest: Callable[[], Answers]) -> Answers:
    """What `rest` gives while a thread does `work`. Ctrl-C ends what both wait for."""
    failed: list[BaseException] = []

    def kept() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=kept, daemon=True)
    thread.start()
    try:
        answers = rest()
        thread.join()
    except BaseException:
        sight.close()
        end_running()
        raise
    if failed:
        raise failed[0]
    return answers


def _machine(subject: Subject) -> str:
    if subject.emulated:
        return f"{subject.emulated.describe()}, so drivers, CANN and devices are not checked"
    if not subject.devices:
        return f"no NPU seen: {subject.npus.error}" if subject.has_npu_tool else "no NPU seen"
    name = subject.chip.name if subject.chip else subject.devices[0].name or "unknown chips"
    return f"{len(subject.devices)} x {name}, as {subject.npus.source} tells"
