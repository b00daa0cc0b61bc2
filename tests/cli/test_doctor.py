"""`tunan doctor` on this machine and on a bundle of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tunan.cli.main import main


def test_a_machine_is_examined_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--target", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("target cpu: ")
    assert "this machine can be used to" in printed


def test_an_npu_that_is_not_there_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--target", "ascend910b3", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    failed = {f["id"] for f in result["findings"] if f["state"] == "failed"}
    assert {"device-files", "npu-count", "driver"} <= failed
    assert result["passed"] is False


def test_a_bundle_of_this_machine_can_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(tmp_path / "machine.tar.gz")
    assert main(["doctor", "--target", "cpu", "--bundle", bundle, "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert main(["doctor", "--from", bundle, "--json"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert [f["state"] for f in here["findings"]] == [f["state"] for f in there["findings"]]
    assert here["target"] == "cpu"


def test_a_deployment_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text(f"model: {{path: {tmp_path}/missing}}\ngateway: {{port: 0}}\n")
    assert main(["doctor", "--target", "cpu", "--config", str(config), "--json"]) == 1
    findings = {f["id"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["model-fit"]["state"] == "failed"
    assert "no such checkpoint" in findings["model-fit"]["found"]


def test_bundle_and_from_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--bundle", f"{tmp_path}/a", "--from", f"{tmp_path}/b"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_bundles_of_several_machines_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundles = [str(tmp_path / f"{name}.tar.gz") for name in ("n1", "n2")]
    for bundle in bundles:
        main(["doctor", "--target", "cpu", "--bundle", bundle])
    capsys.readouterr()
    main(["doctor", "--json", "--from", bundles[0], "--from", bundles[1]])
    result = json.loads(capsys.readouterr().out)
    assert [machine["name"] for machine in result["machines"]] == bundles
    assert [(each["id"], each["state"]) for each in result["between"]] == [("same-packages", "ok")]


def test_a_bundle_is_not_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--from", f"{tmp_path}/a", "--from", f"{tmp_path}/a"]) == 2
    assert "names a bundle twice" in capsys.readouterr().err


def test_neither_torch_nor_vllm_is_imported() -> None:
    code = (
        "import sys; from tunan.cli.main import main; main(['doctor', '--target', 'cpu']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'vllm', 'transformers', 'numpy')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
