"""`tunan emulate` as a command: what it runs, how that ends, and what it refuses in one line."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tunan.cli.main import main

pytestmark = pytest.mark.ascend

TUNAN = Path(sys.executable).with_name("tunan")


def emulate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command by its absolute path from a directory that is not the project's."""
    return subprocess.run(
        [str(TUNAN), "emulate", *arguments],
        capture_output=True,
        text=True,
        cwd=tempfile.gettempdir(),
        env=os.environ | environment,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "name a command to run after --"),
        (("--",), "name a command to run after --"),
        (("--", "no-such-command"), "no command 'no-such-command'"),
        (("--devices", "0", "--", "true"), "0 devices: the emulator has 1 to 16"),
        (("--devices", "17", "--", "true"), "17 devices: the emulator has 1 to 16"),
        (("--soc", "h100", "--", "true"), "unknown chip 'h100'; known: 310p3, 910b1"),
        (("--memory", "lots", "--", "true"), "memory 'lots': write bytes, or a number"),
        (("--memory=-1G", "--", "true"), "memory '-1G'"),
        (("--memory", "0", "--", "true"), "memory '0'"),
        (("--faults", "flood", "--", "true"), "unknown fault 'flood'"),
        (("--faults", "ecc:device=99", "--", "true"), "no device 99"),
    ],
    ids=str,
)
def test_wrong_use_is_one_line(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *arguments]) == 2
    output, errors = capsys.readouterr()
    assert complaint in errors
    assert len(errors.splitlines()) == 1
    assert output == ""


@pytest.mark.parametrize("status", [0, 7])
def test_the_command_s_exit_status_is_passed_on(status: int) -> None:
    assert emulate("--", "sh", "-c", f"exit {status}").returncode == status


def test_the_command_s_arguments_and_output_are_its_own() -> None:
    assert emulate("--", "echo", "--devices", "3").stdout == "--devices 3\n"


def test_the_command_gets_the_signals() -> None:
    trap = "trap 'echo stopped; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen(
        [str(TUNAN), "emulate", "--", "sh", "-c", trap], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(timeout=120) == 9


def test_a_library_without_an_operator_is_gone_when_the_command_ends(tmp_path: Path) -> None:
    done = emulate(
        "--faults",
        "missing:op=aclnnAdd",
        "--",
        "sh",
        "-c",
        'ls -d "$TMPDIR"/tunan-emulator-*/libopapi.so',
        TMPDIR=str(tmp_path),
    )
    assert done.returncode == 0
    assert done.stdout.strip().endswith("libopapi.so")
    deadline = time.monotonic() + 120
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
