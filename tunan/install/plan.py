"""What is to be installed where, and the values that its templates are filled with."""

import platform
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tunan import __version__
from tunan.ascend.catalogue import Release, chips, driver_gates, releases
from tunan.ascend.probes.versions import version_key
from tunan.errors import UsageError
from tunan.install.facts import Family, System, packages
from tunan.targets import family_of

MACHINES = ("aarch64", "x86_64")
TARGETS = (
    "ascend910b",
    "ascend910b1",
    "ascend910b2",
    "ascend910b3",
    "ascend910b4",
    "ascend910b4-1",
    "ascend910c",
    "ascend310p",
    "cpu",
)
FILLED = ".filled-by-tunan"
SUMS = ".sha256sums"


@dataclass(frozen=True)
class Plan:
    """One installation. `upgrade`: the machine has a driver. `packages`: the folder of the vendor's
    files. `wheels`: the folder of Python packages of a machine without a network, or None.
    `project`: the clone. `ascend`: where the vendor's software goes."""

    target: str
    system: str
    machine: str = "aarch64"
    upgrade: bool = False
    prefix: Path = Path("/opt/tunan")
    packages: Path = Path("/opt/packages")
    wheels: Path | None = None
    project: Path = Path("/opt/tunan/project")
    ascend: Path = Path("/usr/local/Ascend")

    def __post_init__(self) -> None:
        """A path with blanks or quotes has no one spelling in shell, systemd and Dockerfile."""
        if not re.fullmatch(r"/[\w./-]*", str(self.prefix), re.ASCII):
            raise UsageError(
                f"--prefix {self.prefix}: an absolute path of letters, digits and /._- is taken"
            )

    @property
    def is_cpu(self) -> bool:
        """Whether no NPU is meant."""
        return self.target == "cpu"

    @property
    def fills_wheels(self) -> bool:
        """Whether the folder of Python packages is still to be filled."""
        return self.wheels is not None and not (self.wheels / FILLED).is_file()

    @property
    def family(self) -> Family:
        """How the vendor's files for this chip are called."""
        return packages().families[self.generation]

    @property
    def generation(self) -> str:
        """`A2`, `A3` or `310P`, as the catalogue calls the chip's family."""
        others = {"ascend910c": "A3", "ascend310p": "310P"}
        return others.get(family_of(self.target), "A2")

    @property
    def release(self) -> Release:
        """The newest release of vllm-ascend, with what goes with it."""
        return releases()[0]


def system_of(os_release: Path = Path("/etc/os-release")) -> str:
    """This machine's system, by the ID in its os-release. Raises `UsageError` if unknown."""
    try:
        lines = os_release.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    said = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}
    for name, system in packages().systems.items():
        if said.get("ID") in system.ids:
            return name
    known = ", ".join(packages().systems)
    raise UsageError(
        f"{os_release}: {said.get('ID', 'no ID')} is not known; name one: --os {known}"
    )


def machine_of() -> str:
    """`aarch64` or `x86_64`. Raises `UsageError` for another processor."""
    machine = platform.machine()
    if machine not in MACHINES:
        raise UsageError(f"this is {machine}; name the machine that is meant: --machine aarch64")
    return machine


def values_of(plan: Plan) -> Mapping[str, str]:
    """What the templates' @NAMES@ stand for."""
    system, data = packages().systems[plan.system], packages()
    return {
        "VERSION": __version__,
        "TARGET": plan.target,
        "SYSTEM": plan.system,
        "MACHINE": plan.machine,
        "PREFIX": str(plan.prefix),
        "PROJECT": shlex.quote(str(plan.project)),
        "WHEELS": shlex.quote(str(plan.wheels)),
        "FILLED": FILLED,
        "SUMS": SUMS,
        "TORCH_INDEX": data.indexes.torch,
        **_of_system(system),
        **({} if plan.is_cpu else _of_ascend(plan)),
    }


def _of_system(system: System) -> dict[str, str]:
    return {
        "SYSTEM_REFRESH": system.refresh,
        "SYSTEM_INSTALL": system.install,
        "SYSTEM_DRIVER": system.driver,
        "SYSTEM_BUILD": system.build,
        "SYSTEM_AFTER": system.after,
        "SYSTEM_CPU": system.cpu,
        "SYSTEM_PYTHON": system.python,
    }


def _of_ascend(plan: Plan) -> dict[str, str]:
    data, release, family = packages(), plan.release, plan.family
    names = {
        "hdk": family.hdk,
        "ops": family.ops,
        "cann": release.cann,
        "machine": plan.machine,
        # The driver's files alone have a hyphen here.
        "hdk_machine": plan.machine.replace("x86_64", "x86-64"),
    }
    how = "--upgrade --quiet" if plan.upgrade else "--full --quiet"
    return {
        "PACKAGES": shlex.quote(str(plan.packages)),
        "ASCEND": shlex.quote(str(plan.ascend)),
        "HDK_PAGE": data.pages.hdk,
        "CANN_PAGE": data.pages.cann,
        **{key.upper(): name.format(**names) for key, name in data.files.model_dump().items()},
        "DRIVER_MINIMUM": driver_minimum(plan.generation),
        "DRIVER_ARGUMENTS": how if plan.upgrade else f"{how} --install-for-all",
        "FIRMWARE_ARGUMENTS": how,
        "CANN": release.cann,
        "TORCH": release.torch,
        "TORCH_NPU": release.torch_npu,
        "VLLM": release.vllm[0],
        "VLLM_ASCEND": release.vllm_ascend,
        "TRITON_ASCEND": str(release.triton_ascend),
        "VARIANT_INDEX": data.indexes.variant,
        "ASCEND_INDEX": data.indexes.ascend,
        # torch_npu's torch for x86-64 is PyTorch's CPU build. Mirrors publish it again, so no hash
        # of it could be checked.
        "TORCH_STEP": (
            f"get torch=={release.torch} --extra-index-url {data.indexes.torch}"
            if plan.machine == "x86_64"
            else "locked ascend-torch.lock"
        ),
        "FROM_SOURCE": "--no-binary vllm " if plan.fills_wheels or plan.wheels is None else "",
    }


def driver_minimum(family: str) -> str:
    """The driver that all of the catalogue's gates accept, but for what a deployment turns on."""
    gates = [g for g in driver_gates() if family in g.families and g.needs != "kv_pool"]
    return max((gate.driver for gate in gates), key=lambda v: version_key(v) or ())


def instead_of(target: str) -> str | None:
    """What to do on a chip that nothing is installed for; None where `target` is no such chip."""
    short = target.lower().removeprefix("ascend")
    for key, chip in chips().items():
        if chip.instead and short in (key, chip.family.lower(), *chip.names):
            return f"{chip.name}: {' '.join(chip.instead.split())}"
    return None


def project_folder() -> Path:
    """The clone that this runs from, else the current folder."""
    clone = Path(__file__).parents[2]
    return clone if (clone / "pyproject.toml").is_file() else Path.cwd()
