"""Whether a machine has the NPU that is asked for."""

from pathlib import Path

import pytest

from tunan.ascend.emulated import EmulatedDevices
from tunan.ascend.target import missing, require, resolve_target
from tunan.config.deployment import Parallel
from tunan.errors import OutsideError, UsageError


def test_auto_is_cpu_without_npu_device_files(tmp_path: Path) -> None:
    assert resolve_target("auto", root=tmp_path) == "cpu"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci_manager").touch()
    assert resolve_target("auto", root=tmp_path) == "cpu"
    (tmp_path / "dev/davinci0").touch()
    assert resolve_target("auto", root=tmp_path) == "ascend910b"


def test_a_named_target_is_not_guessed(tmp_path: Path) -> None:
    assert resolve_target("ascend910c", root=tmp_path) == "ascend910c"


def test_everything_that_is_missing_is_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(OutsideError) as error:
        require("ascend910b3", root=tmp_path)
    message = str(error.value)
    for part in (
        "ascend910b3",
        "/dev/davinci0",
        "/dev/davinci_manager",
        "/dev/devmm_svm",
        "/dev/hisi_hdc",
        "/usr/local/Ascend/driver",
        "npu-smi",
        "CANN toolkit 9.1.0",
        "torch_npu 2.10.0.post4",
        "vllm_ascend 0.23.0.post1",
        "vllm 0.23.0",
    ):
        assert part in message
    assert "\n" not in message


def test_what_is_there_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("davinci0", "davinci_manager", "devmm_svm", "hisi_hdc"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / file).touch()
    (tmp_path / "usr/local/Ascend/driver").mkdir(parents=True)
    (tmp_path / "cann").mkdir()
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "cann"))
    left = " ".join(missing(tmp_path))
    assert "/dev" not in left
    assert "driver" not in left
    assert "CANN" not in left


def emulated(
    folder: Path,
    devices: str = "2",
    chip: str = "Ascend910B3",
    memory: str = "",
    state: str = "",
) -> EmulatedDevices | None:
    """What a process sees in the environment that `tunan emulate` sets."""
    return EmulatedDevices.of(
        {
            "TUNAN_EMULATE_DEVICES": devices,
            "TUNAN_EMULATE_SOC": chip,
            "TUNAN_EMULATE_MEMORY": memory,
            "TUNAN_EMULATE_STATE": state,
            "ASCEND_HOME_PATH": str(folder),
        }
    )


def test_emulated_devices_are_recognised_by_what_tunan_emulate_sets(tmp_path: Path) -> None:
    assert emulated(tmp_path) == EmulatedDevices(2, "Ascend910B3")
    assert emulated(tmp_path, state="/m") == EmulatedDevices(2, "Ascend910B3", state=Path("/m"))
    assert emulated(tmp_path, memory="0.5G") == EmulatedDevices(2, "Ascend910B3", 1 << 29)
    assert EmulatedDevices.of({}) is None


def test_the_variables_without_the_emulated_cann_are_no_device(tmp_path: Path) -> None:
    assert emulated(tmp_path / "gone") is None
    assert emulated(tmp_path, devices="0") is None


@pytest.mark.parametrize(
    ("chip", "target"),
    [
        ("Ascend910B3", "ascend910b3"),
        ("Ascend910B4-1", "ascend910b4"),
        ("Ascend910B2C", "ascend910b"),
        ("Ascend910_9391", "ascend910c"),
        ("Ascend310P3", "ascend310p"),
    ],
)
def test_auto_finds_the_emulated_chip(tmp_path: Path, chip: str, target: str) -> None:
    assert resolve_target("auto", emulated(tmp_path, chip=chip), tmp_path) == target


def test_another_chip_than_the_emulated_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match=r"lacks: .*that chip .it has 2 emulated Ascend910B3"):
        require("ascend910b4", emulated=emulated(tmp_path))


def test_emulated_devices_need_no_driver(tmp_path: Path) -> None:
    with pytest.raises(OutsideError) as error:
        require("ascend910b", emulated=emulated(tmp_path, chip="Ascend310P3"), root=tmp_path)
    assert "/dev" not in str(error.value)
    assert "npu-smi" not in str(error.value)


def test_more_ranks_than_devices_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunan.ascend.target._missing_packages", lambda exactly: [])
    two = emulated(tmp_path)
    require("ascend910b3", Parallel(tensor=2), two)
    with pytest.raises(UsageError, match="2 x 2 ranks need device 2, this machine has only device"):
        require("ascend910b3", Parallel(tensor=2, pipeline=2), two)
    with pytest.raises(UsageError, match="replicas: 2 of 2 x 1 ranks need device 2"):
        require("ascend910b3", Parallel(tensor=2), two, replicas=2)
    with pytest.raises(UsageError, match="need device 7"):
        require("ascend910b3", Parallel(tensor=2, devices=(0, 7)), two)
