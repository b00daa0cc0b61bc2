"""What `tunan serve` tells, also when nobody listens."""

import io

import pytest

from tunan.supervisor.report import Report


class Closed(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("as_json", [True, False])
def test_a_reader_that_goes_away_does_not_end_the_service(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", Closed())
    monkeypatch.setattr("sys.stderr", Closed())
    Report(as_json).event("ready", "ready")
    Report(as_json).progress("loading", "loading 1/2", 1, 2)
