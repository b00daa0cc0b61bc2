"""What is examined: a machine, and what it is to run."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tunan.ascend.catalogue import Chip, Identity, Profile, Release, chips, profiles, releases
from tunan.ascend.emulated import EmulatedDevices
from tunan.ascend.probes.dcmi import LIBRARIES
from tunan.ascend.probes.host import Memory, look_at_memory, look_at_processor
from tunan.ascend.probes.looking import VARIABLES
from tunan.ascend.probes.lscpu import Processor
from tunan.ascend.probes.npu import NpuDevice, NpuReport
from tunan.ascend.probes.npus import look_at_npus
from tunan.ascend.probes.probe import Probe
from tunan.ascend.probes.sight import Sight
from tunan.config import Deployment
from tunan.targets import family_of

if TYPE_CHECKING:
    from pathlib import Path

DRIVER = "/usr/local/Ascend/driver"
# Of CANN 8.5 and newer, and of those before (see `tunan.ascend.recipe.SET_ENV`).
TOOLKITS = ("/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest")
SET_ENV_ATB = "source /usr/local/Ascend/nnal/atb/set_env.sh"
GIB = 1 << 30
_SIZES = ("weights", "kv_bytes_per_token", "max_len")


@dataclass(frozen=True)
class Asked:
    """What the machine is to run; `target` as given (`auto`: look), `profile` to compare with.

    `machines`: how many are looked at together.
    """

    target: str = "auto"
    deployment: Deployment | None = None
    profile: str | None = None
    machines: int = 1


class Subject:
    """A machine seen through `sight`, and what it is `asked` to run. Looks when needed."""

    def __init__(self, sight: Sight, asked: Asked) -> None:
        self.sight = sight
        self.asked = asked

    @property
    def deployment(self) -> Deployment | None:
        """The deployment file's content, if one was given."""
        return self.asked.deployment

    @property
    def profile(self) -> Profile | None:
        """The machine to compare with, if one was named."""
        return profiles()[self.asked.profile] if self.asked.profile else None

    @cached_property
    def emulated(self) -> EmulatedDevices | None:
        """The emulated devices of `tunan emulate`, if this runs inside of it."""
        values = {name: self.sight.variable(name) or "" for name in VARIABLES}
        home = values["ASCEND_HOME_PATH"]
        return EmulatedDevices.of(values) if home and self.sight.exists(home) else None

    @cached_property
    def device_files(self) -> tuple[str, ...]:
        """`davinci0`, `davinci1`, ... of /dev."""
        return tuple(n for n in self.sight.names("/dev") if re.fullmatch(r"davinci[0-9]+", n))

    @cached_property
    def npus(self) -> Probe[NpuReport]:
        """The NPUs, as libdcmi or npu-smi tell."""
        return look_at_npus(self.sight)

    @property
    def has_npu_tool(self) -> bool:
        """Whether npu-smi or libdcmi is there: without devices something is wrong then."""
        error = self.npus.error or ""
        if self.devices or not error.endswith(("is not installed", "was not asked")):
            return True
        return any(self.sight.exists(library) for library in LIBRARIES)

    @property
    def npus_fail(self) -> bool:
        """Whether what asks for NPUs is installed and hangs or fails: there may be some."""
        if self.devices or not self.has_npu_tool:
            return False
        ran = self.sight.run("npu-smi", "info")
        # It worked, and its table is empty.
        is_empty = ran.status == 0 and (self.npus.error or "").startswith("no device in its output")
        return not is_empty

    @property
    def devices(self) -> tuple[NpuDevice, ...]:
        """Every die; none where nothing is known."""
        return self.npus.value.devices if self.npus.value else ()

    @cached_property
    def processor(self) -> Probe[Processor]:
        """The CPUs."""
        return look_at_processor(self.sight)

    @cached_property
    def memory(self) -> Probe[Memory]:
        """The host's memory."""
        return look_at_memory(self.sight)

    @cached_property
    def target(self) -> str:
        """What it is to run on: as asked, else as the deployment says, else what is there."""
        return self.named_target or self._found_target()

    @property
    def named_target(self) -> str | None:
        """The target that was asked for; None where it is what is there."""
        named = [self.asked.target, self.deployment.target if self.deployment else "auto"]
        return next((name for name in named if name != "auto"), None)

    def _found_target(self) -> str:
        if self.emulated:
            return _target_of_name(self.emulated.chip)
        if not self.device_files and not self.devices:
            return "cpu"
        identity = self.identity
        if identity and identity.chip:
            # A chip that the engine does not serve on leaves the CPUs; `chip` says why.
            return identity.chip.target or "cpu"
        return "ascend910b"

    @property
    def identity(self) -> Identity | None:
        """Which chip the first device is."""
        report = self.npus.value
        return report.identity(report.devices[0]) if report else None

    @property
    def chip(self) -> Chip | None:
        """The catalogue's entry of the first device."""
        return self.identity.chip if self.identity else None

    @property
    def wants_npu(self) -> bool:
        """Whether the target is an NPU, real or emulated."""
        return self.target != "cpu"

    @property
    def wants_hardware(self) -> bool:
        """Whether driver, CANN and devices have to be real."""
        return self.wants_npu and self.emulated is None

    @property
    def shows_hardware(self) -> bool:
        """Whether real devices are there to be looked at: also those of a chip that the engine does
        not serve on, unless the CPUs were asked for."""
        is_cpu = self.named_target == "cpu"
        return bool(self.devices) and self.emulated is None and not is_cpu

    @property
    def wants_cann(self) -> bool:
        """Whether CANN and vllm-ascend have to be there: on a chip that they do not serve, that
        they are missing is no finding of its own."""
        return self.wants_hardware and (self.chip is None or self.chip.is_served)

    @property
    def family(self) -> str:
        """`ascend910b` of `ascend910b3`."""
        return family_of(self.target)

    @property
    def nodes(self) -> int:
        """Machines of one replica."""
        return max(1, len(self.deployment.nodes)) if self.deployment else 1

    @property
    def is_one_of_several(self) -> bool:
        """Whether other machines have to reach this one: by the deployment, or as asked."""
        return max(self.nodes, self.asked.machines) > 1

    @property
    def ranks_here(self) -> int:
        """Devices that one replica takes on this machine."""
        parallel = self.deployment.parallel if self.deployment else None
        return -(-parallel.world_size // self.nodes) if parallel else 1

    @property
    def replicas_here(self) -> int:
        """Engines that are started here, standbys included; 0 before engines elsewhere."""
        return self.deployment.replicas.managed if self.deployment else 1

    @property
    def wanted_devices(self) -> tuple[NpuDevice, ...]:
        """Those that the deployment's replicas would take, in the order of their numbers."""
        if self.deployment is None:
            return self.devices
        count = self.ranks_here * max(1, self.replicas_here)
        numbers = self.deployment.parallel.devices or range(count)
        return tuple(d for number, d in enumerate(self.devices) if number in set(numbers))

    @cached_property
    def cann_home(self) -> str | None:
        """Where the toolkit is: as set_env.sh says, else where it is installed by default."""
        named = (self.sight.variable(n) for n in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"))
        folders = [*filter(None, named), *TOOLKITS]
        return next((folder for folder in folders if self.sight.exists(folder)), None)

    @cached_property
    def release(self) -> Release:
        """The row of the compatibility matrix of the installed vllm-ascend, else the newest."""
        installed = self.sight.package("vllm_ascend")
        return next((r for r in releases() if r.vllm_ascend == installed), releases()[0])

    @cached_property
    def in_container(self) -> bool:
        """Whether this is inside a container."""
        return self.sight.exists("/.dockerenv") or self.sight.exists("/run/.containerenv")

    @cached_property
    def checkpoint(self) -> Mapping[str, Any] | None:
        """Sizes of the deployment's checkpoint: `weights`, `kv_bytes_per_token`, `max_len`,
        `latent_attention`, `expert_weights`; `error` where it is none."""
        if self.deployment is None:
            return None
        answer = self.sight.answer("checkpoint", str(self.deployment.model.path))
        if not isinstance(answer, dict):
            return None
        sizes = {key: answer.get(key) for key in _SIZES}
        if not all(isinstance(size, int) and size > 0 for size in sizes.values()):
            return {"error": str(answer.get("error") or "the checkpoint's sizes are not known")}
        experts = answer.get("expert_weights")
        return sizes | {
            "latent_attention": answer.get("latent_attention") is True,
            "expert_weights": experts if isinstance(experts, int) and experts > 0 else 0,
        }


def checkpoint_answer(path: str) -> dict[str, Any]:
    """The answer to `checkpoint` questions on this machine."""
    from pathlib import Path

    from tunan.errors import TunanError
    from tunan.supervisor.model_size import measure

    try:
        size = measure(Path(path))
    except TunanError as error:
        return {"error": str(error)}
    return {
        "weights": size.weights,
        "kv_bytes_per_token": size.kv_bytes_per_token,
        "max_len": size.max_len,
        "latent_attention": size.latent_attention,
        "expert_weights": _expert_weights(Path(path)),
    }


def _expert_weights(directory: "Path") -> int:
    """Bytes of the routed experts, by the headers of the blocks; 0 where these cannot be read."""
    from tunan.checkpoint.safetensors_header import read_header
    from tunan.errors import TunanError

    total = 0
    for file in directory.glob("*.safetensors"):
        try:
            tensors = read_header(file)
        except (TunanError, OSError):
            return 0
        total += sum(tensor.stop - tensor.start for tensor in tensors if ".experts." in tensor.name)
    return total


def this_machine_with_checkpoints(machine: Sight) -> Sight:
    """`machine`, which then also answers `checkpoint` questions."""

    def ask(kind: str, what: str) -> Any:
        return checkpoint_answer(what) if kind == "checkpoint" else machine.answer(kind, what)

    return Sight(ask, side_by_side=machine.side_by_side)


def as_json(asked: Asked) -> dict[str, Any]:
    """`asked` for a bundle."""
    deployment = asked.deployment
    return {
        "target": asked.target,
        "profile": asked.profile,
        "deployment": json.loads(deployment.model_dump_json()) if deployment else None,
    }


def _target_of_name(chip: str) -> str:
    short = chip.lower().removeprefix("ascend")
    named = (c.target for c in chips().values() if short in c.names)
    return next((target for target in named if target), "ascend910b")
