"""Memory of several processes, shared pages counted once."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunan.supervisor.shared_pages import SharedPages, proportional_bytes

MIB = 1 << 20


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with processes 7 (100 KiB) and 8 (50 KiB); 9 may not be looked at."""
    for pid, kib in ((7, 100), (8, 50)):
        (tmp_path / str(pid)).mkdir()
        text = f"0-1 ---p 0 00:00 0 [rollup]\nRss: 900 kB\nPss: {kib} kB\nPss_Dirty: 7 kB\n"
        (tmp_path / str(pid) / "smaps_rollup").write_text(text)
    return tmp_path


def test_proportional_sizes_add_up_and_what_is_gone_counts_nothing(proc: Path) -> None:
    assert proportional_bytes([7, 8, 9], proc) == 150 << 10


# Reads a mapped file whole, and has so many MiB of its own.
READER = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
read = sum(mapped[page] for page in range(0, len(mapped), mmap.PAGESIZE))
own = b"x" * (int(sys.argv[2]) << 20)
print(flush=True)
sys.stdin.read()
"""


async def test_what_a_second_engine_shares_is_not_counted_as_added(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"x" * (64 * MIB))
    pages = SharedPages()
    with reader(file, 0) as first:
        assert await pages.measure({"first": first.pid}, "first") is None
        assert (pages.of("first") or 0) > 64 * MIB
        with reader(file, 32) as second:
            engines = {"first": first.pid, "second": second.pid}
            added = await pages.measure(engines, "second")
            assert added is not None
            assert 32 * MIB <= added < 64 * MIB
            assert await pages.measure(engines, "second") is None  # it has come before


@contextlib.contextmanager
def reader(file: Path, own_mib: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has read `file`; it ends with its standard input."""
    command = [sys.executable, "-c", READER, str(file), str(own_mib)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
