"""The NPU driver, and what needs a newer one."""

from tunan.ascend.catalogue import DriverGate, driver_gates
from tunan.ascend.probes.versions import is_at_least, parse_package
from tunan.doctor.commands import install, upgrade
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import DRIVER, Subject


def look(subject: Subject) -> Answer | None:
    """The version is in the driver's folder; in a container npu-smi tells it, too."""
    if not subject.wants_hardware:
        return None
    version = driver_version(subject)
    if version is None:
        fix = f"docker run -v {DRIVER}/version.info:{DRIVER}/version.info:ro ..."
        return Answer(
            False,
            f"no {DRIVER}/version.info, and npu-smi does not tell",
            "the Ascend driver",
            fix if subject.in_container else install(subject),
        )
    missed = [gate for gate in _gates(subject) if not is_at_least(version, gate.driver)]
    if not missed:
        return Answer(True, version, "the Ascend driver")
    gate = max(missed, key=lambda gate: gate.strict)
    needed = f"{gate.driver} for {gate.what}"
    return Answer(False, version, needed, upgrade(subject), "error" if gate.strict else "warning")


def driver_version(subject: Subject) -> str | None:
    """As version.info says, else npu-smi."""
    path = f"{DRIVER}/version.info"
    package = parse_package(subject.sight.read(path) or "", path).value
    if package:
        return package.version
    return subject.npus.value.driver if subject.npus.value else None


def _gates(subject: Subject) -> list[DriverGate]:
    deployment = subject.deployment
    graphs = deployment is None or not deployment.model.enforce_eager
    newer_cann = is_at_least(subject.release.cann, "8.5.0")
    asked = {"always": True, "graphs": graphs, "kv_pool": False, "cann85": newer_cann}
    family = subject.chip.family if subject.chip else _family(subject.family)
    return [g for g in driver_gates() if asked[g.needs] and family in g.families]


def _family(target: str) -> str:
    return {"ascend910c": "A3", "ascend310p": "310P"}.get(target, "A2")


CHECK = Check("driver", "error", look)
