"""Writes many blocks in several threads, in the order in which the source lies on the disk."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock

from tunan.checkpoint.blocks import Written, write_block
from tunan.checkpoint.chunks import ChunkReader
from tunan.checkpoint.plan import PlannedBlock, inputs_of
from tunan.checkpoint.source import Source


class _StoppedError(Exception):
    """Ends a worker because another one failed or the user interrupted."""


def write_blocks(
    reader: ChunkReader,
    planned: Sequence[PlannedBlock],
    directory: Path,
    workers: int,
    advance: Callable[[int], None],
    finished: Callable[[Written], None],
) -> None:
    """Writes every block; `advance` is told bytes, `finished` each block that is on the disk.

    Both are called from worker threads, each never by two at once. The first failure stops
    the others at their next chunk and is raised.
    """
    counting, recording, stopping = Lock(), Lock(), Event()
    ordered = _in_reading_order(reader.source, planned)

    def count(size: int) -> None:
        if stopping.is_set():
            raise _StoppedError
        with counting:
            advance(size)

    def write(block: PlannedBlock) -> None:
        count(0)
        try:
            written = write_block(reader, block, directory, count)
            with recording:
                finished(written)
        except BaseException:
            stopping.set()
            raise

    with _one_thread_each(), ThreadPoolExecutor(workers, "block") as pool:
        futures = [pool.submit(write, block) for block in ordered]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:  # also when the user interrupts
            stopping.set()
            pool.shutdown(cancel_futures=True)
        _raise_first(futures)


def _in_reading_order(source: Source, planned: Sequence[PlannedBlock]) -> list[PlannedBlock]:
    """Blocks by where their data begins in the source, so that the plain block of a layer and
    those of every rank are written while its pages are still in memory."""
    position = {name: at for at, name in enumerate(source.tensors)}

    def begin(block: PlannedBlock) -> int:
        return min((position[name] for name in inputs_of(block)), default=0)

    return sorted(planned, key=begin)


def _raise_first(futures: Sequence[Future[None]]) -> None:
    errors = [f.exception() for f in futures if f.done() and not f.cancelled()]
    failures = [e for e in errors if e is not None and not isinstance(e, _StoppedError)]
    if failures:
        raise failures[0]


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """The workers share the cores; PyTorch must not start a pool of its own in each."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
