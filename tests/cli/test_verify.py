"""`tunan verify` as a user meets it."""

import argparse
import json
from pathlib import Path

import pytest

from tests.checkpoint.sources import run_conversion
from tests.models import write_llama
from tunan.cli import verify as verb
from tunan.errors import CheckFailedError, UsageError


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    run_conversion(write_llama(tmp_path / "source"), tmp_path / "out")
    return tmp_path / "out"


def run(*words: object) -> int:
    """Parses and runs the verb alone."""
    parser = argparse.ArgumentParser()
    verb.register(parser.add_subparsers())
    args = parser.parse_args(["verify", *map(str, words)])
    return int(args.run(args))


def test_a_sound_checkpoint_is_said_to_be_sound(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(converted) == 0
    assert "are what the manifest says" in capsys.readouterr().out


def test_the_first_problem_is_the_error_and_json_has_all(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (converted / "config.json").unlink()
    (converted / "model-00001-of-00003.safetensors").unlink()
    with pytest.raises(CheckFailedError, match=r"model-00001-of-00003.*is missing \(2 problems"):
        run(converted, "--json")
    found = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["file"] for problem in found] == [
        "model-00001-of-00003.safetensors",
        "config.json",
    ]


def test_a_directory_that_is_no_checkpoint_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tunan\.json"):
        run(tmp_path)


@pytest.mark.parametrize("count", ["0", "-3", "65", "x"])
def test_a_number_of_workers_out_of_range_is_wrong_use(converted: Path, count: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run(converted, "--workers", count)
    assert caught.value.code == 2
