"""The CPU path in vLLM's registries: 0.32, 0.23's own Python, switched off, without a library."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.vllm_023 import REQUIREMENT, sources
from tests.engine.vllm_process import ProcessFailed, run_in_vllm
from tunan.engine.cpu.registration import ATTENTION_BACKEND, ATTENTION_BACKENDS
from tunan.engine.cpu.switch import VARIABLE

pytestmark = pytest.mark.engine

OURS = "tunan.engine.cpu.models"
THEIRS = "vllm.model_executor.models.llama"


def look(scratch: Path, **question: Any) -> dict[str, Any]:
    found: dict[str, Any] = run_in_vllm("tests.engine.cpu.registered:look", question, scratch)
    return found


def test_our_kernels_come_first_and_vllms_stay_behind_them(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert found["int8"][0] == "CpuInt8LinearKernel"
    assert found["int8"].count("CpuInt8LinearKernel") == 1
    assert "CPUInt8ScaledMMLinearKernel" in found["int8"]
    assert found["mp"][0] == "CpuW4A8LinearKernel"
    assert "Dynamic4bitLinearKernel" in found["mp"]
    assert found["attention"] == ATTENTION_BACKEND
    assert found["latent"] == [ATTENTION_BACKENDS[name] for name in ("CPU_MLA", "AMX_MLA")]
    assert found["experts"] == "tunan.engine.cpu.routed_experts"
    assert found["models"] == [OURS] * 4
    assert found["log"] == []


def test_vllm_023_gets_the_linear_kernels_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = sources(tmp_path)
    if tree is None:
        pytest.skip(f"pip cannot fetch {REQUIREMENT} here")
    monkeypatch.setenv("PYTHONPATH", str(tree))
    found = look(tmp_path / "run")
    assert found["int8"][0] == "CpuInt8LinearKernel"
    assert found["mp"][0] == "CpuW4A8LinearKernel"
    assert all(path.startswith("vllm.") for path in [found["attention"], *found["latent"]])
    assert found["experts"] is None
    assert found["models"][0] == THEIRS
    assert found["log"] == []


def test_switched_off_everything_is_vllms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    found = look(tmp_path)
    assert not any(name.startswith("Cpu") for name in found["int8"] + found["mp"])
    assert found["experts"] is None
    assert found["models"][0] == THEIRS
    assert found["log"] == []


def test_without_the_library_one_line_says_so(tmp_path: Path) -> None:
    found = look(tmp_path, library=str(tmp_path / "libmissing.so"))
    assert not any(name.startswith("Cpu") for name in found["int8"] + found["mp"])
    (line,) = set(found["log"])
    assert "vLLM's own CPU kernels are used" in line
    assert "libmissing.so is missing" in line


def test_a_switch_that_means_nothing_stops_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "on")
    with pytest.raises(ProcessFailed, match=f"{VARIABLE}=on: give 1"):
        look(tmp_path)


def test_what_our_linear_kernels_leave_to_vllms_is_logged_once(tmp_path: Path) -> None:
    found = run_in_vllm("tests.engine.cpu.registered:linear_refusals", None, tmp_path)
    said = found["said"]
    assert said["covered"] == said["w4a8"] == [True, None]
    assert said["static"] == [False, "activations have a fixed scale"]
    assert said["asymmetric"] == [False, "activations have a zero point"]
    assert said["per tensor"] == [False, "weights have one scale a tensor"]
    assert said["large groups"] == [False, "groups are of 256, not of (32, 64, 128)"]
    assert said["w4a16"][0] is False
    lines = [line for line in found["log"] if "vLLM's own kernels run the" in line]
    assert len(lines) == len(set(lines)) == 4
