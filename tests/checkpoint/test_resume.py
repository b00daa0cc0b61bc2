"""Conversions that are cut short: killed, out of space, with a source that goes away."""

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.sources import Recorder, run_conversion
from tests.models import write_llama
from tunan.checkpoint.convert import ConvertOptions
from tunan.checkpoint.destination import Destination
from tunan.checkpoint.manifest import Manifest
from tunan.errors import CheckFailedError, OutsideError, UsageError

OPTIONS = ConvertOptions(block_bytes=300_000, workers=1, name="same", tensor_parallel=2)

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.checkpoint.sources import Recorder, run_conversion
from tests.checkpoint.test_resume import OPTIONS

def kill(done):
    if done > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

run_conversion(Path(sys.argv[1]), Path(sys.argv[2]), OPTIONS, Recorder(on_advance=kill))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "source")


def kill_after(size: int, source: Path, destination: Path) -> None:
    """Runs a conversion in a process that dies by SIGKILL once `size` bytes went through."""
    command = [sys.executable, "-c", KILLED, str(source), str(destination), str(size)]
    root = Path(__file__).parents[2]
    assert subprocess.run(command, cwd=root).returncode == -signal.SIGKILL


def interrupt_after(size: int, source: Path, destination: Path) -> None:
    """Runs a conversion that is interrupted once `size` bytes went through."""

    def interrupt(done: int) -> None:
        if done > size:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_conversion(source, destination, OPTIONS, Recorder(on_advance=interrupt))


def test_a_killed_conversion_is_continued_and_gives_the_same_bytes(
    source: Path, tmp_path: Path
) -> None:
    whole = run_conversion(source, tmp_path / "whole", OPTIONS).manifest
    kill_after(3_000_000, source, tmp_path / "out")
    partial = tmp_path / "out.partial"
    assert list(partial.rglob("*.tmp"))
    assert not (tmp_path / "out").exists()
    assert not (partial / "tunan.json").exists()
    progress = Recorder()
    outcome = run_conversion(source, tmp_path / "out", OPTIONS, progress)
    assert 0 < outcome.reused == progress.reused < len(whole.blocks)
    assert outcome.written_bytes == progress.done < sum(block.bytes for block in whole.blocks)
    assert outcome.manifest == whole
    files = sorted(p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*"))
    assert files == sorted(
        p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*")
    )
    for file in files:
        if (tmp_path / "out" / file).is_file():
            assert (tmp_path / "out" / file).read_bytes() == (
                tmp_path / "whole" / file
            ).read_bytes()
    assert not partial.exists()


def test_other_options_start_over_and_say_so(source: Path, tmp_path: Path) -> None:
    interrupt_after(3_000_000, source, tmp_path / "out")
    outcome = run_conversion(source, tmp_path / "out", ConvertOptions(block_bytes=500_000))
    assert (outcome.reused, outcome.restarted) == (0, True)
    assert not (tmp_path / "out/tensor-parallel-2").exists()


def test_a_source_that_changed_starts_over(source: Path, tmp_path: Path) -> None:
    interrupt_after(3_000_000, source, tmp_path / "out")
    os.utime(next(iter(source.glob("*.safetensors"))), (1, 1))
    outcome = run_conversion(source, tmp_path / "out", OPTIONS)
    assert (outcome.reused, outcome.restarted) == (0, True)


def test_a_finished_block_that_lost_bytes_is_written_again(source: Path, tmp_path: Path) -> None:
    interrupt_after(3_000_000, source, tmp_path / "out")
    finished = sorted((tmp_path / "out.partial").glob("*.safetensors"))
    os.truncate(finished[0], 10)
    outcome = run_conversion(source, tmp_path / "out", OPTIONS)
    assert outcome.manifest == run_conversion(source, tmp_path / "whole", OPTIONS).manifest


def test_a_torn_last_line_of_the_journal_costs_one_block(source: Path, tmp_path: Path) -> None:
    interrupt_after(3_000_000, source, tmp_path / "out")
    journal = tmp_path / "out.partial/conversion.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines)[:-20])
    outcome = run_conversion(source, tmp_path / "out", OPTIONS)
    assert outcome.reused == len(lines) - 2


def test_an_interrupt_keeps_finished_blocks(source: Path, tmp_path: Path) -> None:
    interrupt_after(3_000_000, source, tmp_path / "out")
    assert not list((tmp_path / "out.partial").rglob("*.tmp"))
    assert run_conversion(source, tmp_path / "out", OPTIONS).reused > 0


def test_a_source_truncated_meanwhile_is_named(source: Path, tmp_path: Path) -> None:
    file = next(iter(source.glob("*.safetensors")))
    half = file.stat().st_size // 2
    progress = Recorder(on_begin=lambda: os.truncate(file, half))
    with pytest.raises(CheckFailedError, match=rf"{file.name}: was truncated while it was read"):
        run_conversion(source, tmp_path / "out", OPTIONS, progress)
    assert not (tmp_path / "out").exists()


def test_a_second_conversion_to_the_same_place_is_refused(source: Path, tmp_path: Path) -> None:
    destination = Destination(tmp_path / "out")
    with destination.locked(), pytest.raises(UsageError, match="another conversion is writing it"):
        run_conversion(source, tmp_path / "out", OPTIONS)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 80 MB. Needs root, as CI has."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=80m", "none", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_too_little_space_is_said_before_anything_is_written(
    source: Path, small_disk: Path
) -> None:
    (small_disk / "filler").write_bytes(bytes(30 << 20))
    with pytest.raises(CheckFailedError, match=r"more are needed and 0\.05 GiB are free"):
        run_conversion(source, small_disk / "out", OPTIONS)
    assert not (small_disk / "out").exists()


def test_a_disk_that_fills_up_keeps_what_is_finished_for_the_next_run(
    source: Path, small_disk: Path
) -> None:
    filler = small_disk / "filler"

    def fill() -> None:
        with filler.open("wb") as file:
            file.write(bytes((80 << 20) - (3 << 20)))

    with pytest.raises(CheckFailedError, match=r"no space left .* run the same command again"):
        run_conversion(source, small_disk / "out", OPTIONS, Recorder(on_begin=fill))
    assert not (small_disk / "out").exists()
    assert not list((small_disk / "out.partial").rglob("*.tmp"))
    filler.unlink()
    outcome = run_conversion(source, small_disk / "out", OPTIONS)
    assert outcome.reused > 0
    assert Manifest.read(small_disk / "out") == outcome.manifest


def test_a_limit_on_file_sizes_is_not_called_a_full_disk(source: Path, tmp_path: Path) -> None:
    command = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "from pathlib import Path; from tests.checkpoint.sources import run_conversion;"
        "run_conversion(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", command, str(source), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    last = run.stderr.strip().splitlines()[-1]
    assert re.search(r"CheckFailedError: .*out\.partial: a limit on the size of files", last)
    assert "ulimit -f" in last
    assert "no space left" not in last
    assert not (tmp_path / "out").exists()


def test_an_error_before_the_first_block_promises_nothing(source: Path, tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(CheckFailedError, match="Input/output error; run the same") as raised:
        run_conversion(source, tmp_path / "out", OPTIONS, Recorder(on_begin=fail))
    assert "kept" not in str(raised.value)


def test_what_may_not_be_written_is_said_with_what_to_do(source: Path, tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.EROFS, "Read-only file system", "/there")

    with pytest.raises(OutsideError, match=r"/there: Read-only .*choose another directory"):
        run_conversion(source, tmp_path / "out", OPTIONS, Recorder(on_begin=fail))


def test_a_crash_at_the_very_end_costs_no_block(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_conversion(source, tmp_path / "out", OPTIONS)
    outcome = run_conversion(source, tmp_path / "out", OPTIONS)
    assert outcome.reused == len(outcome.manifest.blocks)


def test_another_version_starts_over(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(3_000_000, source, tmp_path / "out")
    monkeypatch.setattr("tunan.checkpoint.journal.__version__", "0.0.0.other")
    outcome = run_conversion(source, tmp_path / "out", OPTIONS)
    assert (outcome.reused, outcome.restarted) == (0, True)


def test_a_torn_line_does_not_swallow_the_next_one(source: Path, tmp_path: Path) -> None:
    interrupt_after(3_000_000, source, tmp_path / "out")
    journal = tmp_path / "out.partial/conversion.journal"
    journal.write_bytes(journal.read_bytes()[:-20])
    interrupt_after(500_000, source, tmp_path / "out")
    lines = journal.read_text().splitlines()
    blocks = len(list((tmp_path / "out.partial").rglob("*.safetensors")))
    assert sum('"sha256"' in line and line.endswith("}") for line in lines) == blocks
