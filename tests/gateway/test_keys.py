"""API keys."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from tunan.errors import UsageError
from tunan.gateway.keys import ApiKeys

PLAIN = "a-key-of-enough-length"
HASHED = "another-key-of-enough-length"


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    digest = hashlib.sha256(HASHED.encode()).hexdigest()
    file = tmp_path / "keys.txt"
    file.write_text(f"# our keys\n\n{PLAIN}\nsha256:{digest}\n")
    return ApiKeys.read(file)


@pytest.mark.parametrize("header", [f"Bearer {PLAIN}", f"bearer {HASHED}"])
def test_plain_and_hashed_keys_open(keys: ApiKeys, header: str) -> None:
    assert keys.open_for(header.encode())


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", f"Basic {PLAIN}", PLAIN, "Bearer x"])
def test_anything_else_does_not(keys: ApiKeys, header: str) -> None:
    assert not keys.open_for(header.encode())


def test_plain_keys_do_not_stay_in_memory(keys: ApiKeys) -> None:
    assert PLAIN not in repr(vars(keys))


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no API key"), ("qwertz", "shorter than 16"), ("sha256:xyz", "64 hexadecimal digits")],
)
def test_a_bad_file_is_refused_without_quoting_a_key(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        ApiKeys.read(file)
    assert not text or text not in str(error.value)


def test_a_missing_file_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the API keys"):
        ApiKeys.read(tmp_path / "none")


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="/dev/zero: larger than 1 MiB, so not a file of API keys"):
        ApiKeys.read(Path("/dev/zero"))


def test_keys_may_come_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "keys"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(f"{PLAIN}\n"))
    writer.start()
    keys = ApiKeys.read(pipe)
    writer.join()
    assert keys.open_for(f"Bearer {PLAIN}".encode())
