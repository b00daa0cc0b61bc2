"""Whether a machine has the NPU that is asked for."""

from pathlib import Path

import pytest

from tunan.ascend.target import missing, require, resolve_target
from tunan.errors import OutsideError


def test_auto_is_cpu_without_npu_device_files(tmp_path: Path) -> None:
    assert resolve_target("auto", tmp_path) == "cpu"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci_manager").touch()
    assert resolve_target("auto", tmp_path) == "cpu"
    (tmp_path / "dev/davinci0").touch()
    assert resolve_target("auto", tmp_path) == "ascend910b"


def test_a_named_target_is_not_guessed(tmp_path: Path) -> None:
    assert resolve_target("ascend910c", tmp_path) == "ascend910c"


def test_everything_that_is_missing_is_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(OutsideError) as error:
        require("ascend910b3", tmp_path)
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
