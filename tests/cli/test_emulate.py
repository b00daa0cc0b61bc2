"""`tunan emulate` before it starts anything; what it starts is tested in tests/ascend."""

import sys

import pytest

from tunan.cli.main import main


def test_without_a_command_it_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate"]) == 2
    assert "name a command to run after --" in capsys.readouterr().err


def test_without_the_emulator_it_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tunan_emulator", None)
    assert main(["emulate", "--", "true"]) == 3
    assert "make setup-ascend" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["true"], "`--` is missing before the command: `tunan emulate -- true`"),
        (["sh", "-c", "true"], "`--` is missing before the command: `tunan emulate -- sh -c true`"),
        (["--devcies", "2"], "unrecognized arguments: --devcies 2"),
        (["stray", "--", "true"], "unrecognized arguments: stray"),
        (["--json", "--", "true"], "unrecognized arguments: --json"),
    ],
)
def test_words_before_the_command_are_wrong_use(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["emulate", *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"tunan emulate: {complaint}; see tunan emulate --help"
