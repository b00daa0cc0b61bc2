"""`tunan config`."""

import json
from pathlib import Path

import pytest
import yaml

from tunan.cli.main import main
from tunan.config import load_deployment


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "deploy.yaml"
    path.write_text("model: {path: /m}\ngateway: {port: 9}\n")
    return path


def test_schema_is_a_json_schema_that_forbids_unknown_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["model"]
    assert schema["properties"]["parallel"]


def test_check_says_valid_or_what_is_wrong(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: valid\n"
    file.write_text("model: {path: /m}\nmemory: {swap_gib: 2}\n")
    assert main(["config", "check", str(file)]) == 2
    assert "`memory.swap_gib` is not available" in capsys.readouterr().err


def test_show_fills_in_the_defaults_and_can_be_read_again(
    file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["config", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown)["warmup"] == {"requests": 100}
    again = tmp_path / "again.yaml"
    again.write_text(shown)
    assert load_deployment(again) == load_deployment(file)
