"""`tunan install` prints, writes and runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tunan.cli.main import main

ASCEND = ["install", "--target", "ascend910b3", "--os", "ubuntu", "--machine", "aarch64"]


def test_the_script_is_printed_and_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ASCEND) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("#!/usr/bin/env bash\n# Installs Tunan ")
    assert subprocess.run(["bash", "-n"], input=printed, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "first"), [(["--upgrade"], "firmware"), (["--no-upgrade"], "driver")]
)
def test_the_order_can_be_asked_for(
    options: list[str], first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASCEND, *options]) == 0
    step = next(line for line in capsys.readouterr().out.splitlines() if "# 4/" in line)
    assert first in step


def test_files_are_written_for_a_deployment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text("name: v3\nmodel: {path: /models/v3}\nparallel: {tensor: 4}\n")
    assert main([*ASCEND, "--config", str(config), "--write", str(tmp_path / "out")]) == 0
    listed = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert all(path.is_file() for path in listed)
    manifest = (tmp_path / "out" / "kubernetes" / "deployment.yaml").read_text()
    assert 'huawei.com/Ascend910: "4"' in manifest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "ascend910x"], "--target ascend910x: not one of ascend910b, "),
        (["--target", "ascend910a"], "vllm-ascend has no kernels for it"),
        (["--target", "cpu", "--os", "plan9"], "--os plan9: not one of ubuntu, "),
        (["--target", "cpu", "--machine", "riscv"], "--machine riscv: not one of aarch64, "),
        (["--target", "cpu", "--run", "--write", "x"], "--run and --write exclude each other"),
        (["--target", "cpu", "--offline", __file__], "not a folder; name one"),
        (["--target", "cpu", "--write", __file__], "not a folder; name one"),
        (["--target", "cpu", "--config", "x"], "--config is for the files of --write"),
        (["--target", "cpu", "--overwrite"], "--overwrite is for the files of --write"),
        (["--target", "cpu", "--packages", __file__], "not a folder; name that of the vendor's"),
        (["--target", "cpu", "--packages", "/no/such", "--run"], "there is no such folder"),
        (["--target", "cpu", "--prefix", "/opt/it's"], "an absolute path of letters, digits and /"),
        (["--target", "cpu", "--prefix", "/opt/a b"], "an absolute path of letters, digits and /"),
        *(
            (["--target", "cpu", option, ""], f"{option}: it is empty; name a path")
            for option in ("--prefix", "--packages", "--offline", "--write", "--config")
        ),
    ],
)
def test_wrong_use_is_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["install", *options]) == 2
    assert message in capsys.readouterr().err


def status_of(arguments: list[str]) -> int:
    """argparse ends the process itself."""
    try:
        return main(arguments)
    except SystemExit as end:
        return int(str(end.code))


def test_a_script_for_another_machine_may_name_a_folder_of_that_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*ASCEND, "--packages", "/no/such/folder"]) == 0
    printed = capsys.readouterr()
    assert "PACKAGES=/no/such/folder\n" in printed.out
    assert printed.err == (
        "tunan: warning: --packages /no/such/folder is not on this machine; it has to be where "
        "the script runs\n"
    )
    assert main(ASCEND) == 0
    assert capsys.readouterr().err == ""


def test_a_910b4_1_is_a_chip_of_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--target", "ascend910b4-1", "--os", "ubuntu"]) == 0
    assert "Ascend-cann-910b-ops_" in capsys.readouterr().out


def test_a_step_that_fails_is_status_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_id = tmp_path / "id"
    fake_id.write_text("#!/bin/sh\necho 1000\n")
    fake_id.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main([*ASCEND, "--run"]) == 3
    assert capfd.readouterr().err == (
        "install: run it as root\ntunan: a step of the installation failed, see the line above\n"
    )


def test_neither_torch_nor_vllm_is_imported() -> None:
    code = (
        f"import sys; from tunan.cli.main import main; main({ASCEND!r});"
        "sys.exit(any(name in sys.modules for name in ('torch', 'vllm', 'transformers', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
