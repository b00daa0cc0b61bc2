"""Reads and checks the next block while the engine consumes the last one.

One thread works on one block at a time, so that no more than two are in hand: the one
being consumed and the one being read. It brings pages into the kernel's cache and keeps
none itself.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO

from tunan.checkpoint.manifest import MANIFEST_FILE
from tunan.engine.layout import PlannedBlock
from tunan.errors import CheckFailedError

Range = tuple[int, int]

# Small enough to stay in a core's own cache between the read and the hash.
_HASHED_PIECE = 1 << 20
# The kernel cuts a longer request short at its own read-ahead window, 128 KiB by default.
_ADVISED_PIECE = 128 << 10


def read_ahead(
    blocks: Sequence[PlannedBlock],
    hashed: Callable[[PlannedBlock], bool],
    passed: Callable[[PlannedBlock], None],
    ranges: Callable[[PlannedBlock], Sequence[Range]],
) -> Iterator[PlannedBlock]:
    """Yields the blocks in order, each once it is checked and on its way into memory.

    `hashed` says whether a block is read whole and its sha256 compared, `passed` is told of
    each that was found right, `ranges` says which bytes of another one this process will
    touch; all three are called by the reading thread. Raises CheckFailedError,
    naming the file, for a block whose content is not what the manifest says or that cannot
    be read.
    """
    with ThreadPoolExecutor(1, "tunan-read-ahead") as reader:
        coming: Future[PlannedBlock] | None = None
        for block in blocks:
            ready, coming = coming, reader.submit(_prepare, block, hashed, passed, ranges)
            if ready is not None:
                yield ready.result()
        if coming is not None:
            yield coming.result()


def _prepare(
    block: PlannedBlock,
    hashed: Callable[[PlannedBlock], bool],
    passed: Callable[[PlannedBlock], None],
    ranges: Callable[[PlannedBlock], Sequence[Range]],
) -> PlannedBlock:
    try:
        with block.path.open("rb", buffering=0) as file:
            if hashed(block):
                _check_hash(block, file)
                passed(block)
            else:
                _advise(file, ranges(block))
    except OSError as error:
        raise CheckFailedError(f"{block.path}: cannot be read ({error.strerror})") from error
    return block


def _check_hash(block: PlannedBlock, file: FileIO) -> None:
    digest = hashlib.sha256()
    piece = memoryview(bytearray(_HASHED_PIECE))
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    while size := file.readinto(piece):
        digest.update(piece[:size])
    if digest.hexdigest() != block.sha256:
        raise CheckFailedError(
            f"{block.path}: its content is not what {MANIFEST_FILE} says (sha256); "
            "the block is corrupt, fetch or convert it again"
        )


def _advise(file: FileIO, ranges: Sequence[Range]) -> None:
    for start, stop in ranges:
        for at in range(start, stop, _ADVISED_PIECE):
            length = min(_ADVISED_PIECE, stop - at)
            os.posix_fadvise(file.fileno(), at, length, os.POSIX_FADV_WILLNEED)
