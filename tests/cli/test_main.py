"""What the command line does whatever the verb: streams and errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.sources import run_conversion
from tests.models import write_llama
from tunan.cli.main import main

TUNAN = (sys.executable, "-c", "import sys; from tunan.cli.main import main; sys.exit(main())")


def test_a_reader_that_goes_away_ends_the_run_without_a_word(tmp_path: Path) -> None:
    run_conversion(write_llama(tmp_path / "source"), tmp_path / "out")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run([*TUNAN, "verify", tmp_path / "out"], stdout=stdout, stderr=-1)
    assert (done.returncode, done.stderr) == (1, b"")


def test_output_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    run_conversion(write_llama(tmp_path / "source"), tmp_path / "out")
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run(
            [*TUNAN, "verify", tmp_path / "out"],
            env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
            stdout=stdout,
            stderr=-1,
        )
    assert done.returncode == 3
    assert done.stderr == b"tunan: standard output: No space left on device\n"


def test_a_name_the_terminal_has_no_letters_for_is_spelled_out(tmp_path: Path) -> None:
    run_conversion(write_llama(tmp_path / "source"), tmp_path / "模型")
    done = subprocess.run(
        [*TUNAN, "verify", tmp_path / "模型"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u6a21\u578b: 3 blocks" in done.stdout


def test_messages_stay_out_of_stdout_when_stderr_is_closed(tmp_path: Path) -> None:
    command = [*TUNAN, "convert", str(write_llama(tmp_path / "source")), str(tmp_path / "no/out")]
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, b"")


def test_an_error_of_the_system_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run([*TUNAN, "convert", "x" * 300, tmp_path / "out"], capture_output=True)
    assert done.returncode == 3
    assert done.stderr == b"tunan: " + b"x" * 300 + b": File name too long\n"


def test_a_message_cannot_steer_the_terminal(tmp_path: Path) -> None:
    done = subprocess.run([*TUNAN, "verify", tmp_path / "\x1b[2J"], capture_output=True)
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "tunan: the following arguments are required: VERB; see tunan --help"),
        (
            ["serve", "--port", "x"],
            "tunan serve: argument --port: invalid int value: 'x'; see tunan serve --help",
        ),
        (
            ["serve", "m", "--no-such"],
            "tunan serve: unrecognized arguments: --no-such; see tunan serve --help",
        ),
        (
            ["verify", "m", "--", "x"],
            "tunan verify: unexpected after `--`: x; see tunan verify --help",
        ),
        (
            ["convert", "a", "b", "--no-such=\x1b[2J\n1"],
            "tunan convert: unrecognized arguments: --no-such=\\x1b[2J 1; see tunan convert --help",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr() == ("", f"{line}\n")


@pytest.mark.parametrize("verb", ["", "ops", "config"])
def test_a_verb_that_is_not_there_is_one_line(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*filter(None, [verb]), "no-such-verb"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "invalid choice: 'no-such-verb'" in line


def test_the_command_line_loads_nothing_that_a_light_verb_does_not_need() -> None:
    program = (
        "import sys; from tunan.cli.main import build_parser; build_parser()\n"
        "print([m for m in ('asyncio', 'ssl', 'torch', 'vllm', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_an_interruption_while_the_program_is_still_loaded_is_one_line() -> None:
    program = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "tunan.cli.top":  # one of the verbs, which are loaded one after the other
            os.kill(os.getpid(), signal.SIGINT)
        return None

# A program that a shell starts in the background is told to ignore it, and so are its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
from tunan.__main__ import run
sys.exit(run())
"""
    done = subprocess.run((sys.executable, "-c", program, "status"), capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"tunan: interrupted\n")


def test_the_installed_program_is_the_one_that_can_be_interrupted() -> None:
    from tomllib import loads

    scripts = loads(Path("pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"tunan": "tunan.__main__:run"}


@pytest.mark.parametrize(
    "words",
    [
        ["status", "x", "--api-key", "sesame"],
        ["status", "--hf-token=sesame"],
        ["status", "--", "--api-key", "sesame"],
        ["serve", "/m", "--port", "sk-sesame-sesame"],
        ["serve", "/m", "--target", "api_key=sesame"],
    ],
)
def test_no_secret_of_the_command_line_is_in_a_message(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    error = capsys.readouterr().err
    assert "sesame" not in error
    assert "***" in error


@pytest.mark.parametrize("name", ["sk-sesame-sesame", "http://me:sesame@host/x"])
def test_no_evident_secret_is_in_an_error_of_the_system(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--config", name]) == 2
    error = capsys.readouterr().err
    assert "sesame" not in error
    assert "***" in error
