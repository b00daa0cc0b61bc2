"""Checks a converted checkpoint against its manifest: every size, every hash, every index."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from tunan.checkpoint.manifest import MANIFEST_FILE, Block, CarriedFile, Manifest
from tunan.checkpoint.metadata import INDEX_FILE
from tunan.checkpoint.safetensors_header import read_header
from tunan.checkpoint.shard_index import read_index
from tunan.errors import CheckFailedError

_PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class Problem:
    """What is wrong with one file; `file` is relative to the checkpoint."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def verify(
    directory: Path, manifest: Manifest, workers: int, advance: Callable[[int], None]
) -> list[Problem]:
    """Re-reads and re-hashes everything `manifest` lists, in `workers` threads.

    Returns the problems in the manifest's order: missing, extra, of another size or content,
    or an index that disagrees with the blocks. `advance` is told bytes as they are read, from
    several threads, never two at once.
    """
    lock = Lock()

    def count(size: int) -> None:
        with lock:
            advance(size)

    listed: list[Block | CarriedFile] = [*manifest.blocks, *manifest.files]
    with ThreadPoolExecutor(workers, "verify") as pool:
        found = list(pool.map(lambda item: _check_file(directory, item, count), listed))
    problems = [problem for problem in found if problem]
    names = {item.file for item in listed}
    problems += _extra_files(directory, names)
    bad = {problem.file for problem in problems}
    together: dict[str, list[Block]] = {}
    for block in manifest.blocks:
        together.setdefault(str(Path(block.file).with_name(INDEX_FILE)), []).append(block)
    for index, blocks in together.items():
        if index not in names:
            problems.append(Problem(index, f"is not in {MANIFEST_FILE}, though its blocks are"))
        elif index not in bad:
            problems += _check_index(directory, index, blocks, bad)
    return problems


def total_bytes(manifest: Manifest) -> int:
    """Bytes `verify` reads when nothing is missing."""
    return sum(b.bytes for b in manifest.blocks) + sum(f.bytes for f in manifest.files)


def hash_file(path: Path, advance: Callable[[int], None]) -> str:
    """sha256 (hex) of a file, read in pieces and not left in the page cache."""
    digest = hashlib.sha256()
    piece = memoryview(bytearray(_PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(piece):
            digest.update(piece[:size])
            advance(size)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def _check_file(
    directory: Path, item: Block | CarriedFile, advance: Callable[[int], None]
) -> Problem | None:
    path = directory / item.file
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device might never end
            return Problem(item.file, "is not a regular file")
        size = status.st_size
        if size != item.bytes:
            return Problem(item.file, f"has {size} bytes, {MANIFEST_FILE} says {item.bytes}")
        if hash_file(path, advance) != item.sha256:
            return Problem(item.file, f"its content is not what {MANIFEST_FILE} says (sha256)")
    except FileNotFoundError:
        return Problem(item.file, "is missing")
    except OSError as error:
        return Problem(item.file, f"cannot be read ({error.strerror})")
    return None


def _extra_files(directory: Path, listed: set[str]) -> Iterator[Problem]:
    """Weight files an engine would pick up although the manifest does not know them."""
    for path in sorted(directory.rglob("*.safetensors")):
        file = path.relative_to(directory).as_posix()
        if file not in listed:
            yield Problem(file, f"is not in {MANIFEST_FILE}; remove it")


def _check_index(
    directory: Path, file: str, blocks: Iterable[Block], bad: set[str]
) -> Iterator[Problem]:
    try:
        weights = read_index(directory / file)
    except CheckFailedError as error:
        yield Problem(file, str(error).removeprefix(f"{directory / file}: "))
        return
    unread = {Path(block.file).name for block in blocks if block.file in bad}
    blocks = [block for block in blocks if block.file not in bad]
    held: dict[str, str] = {}
    for block in blocks:
        try:
            tensors = read_header(directory / block.file)
        except CheckFailedError as error:
            yield Problem(block.file, str(error).removeprefix(f"{directory / block.file}: "))
            unread.add(Path(block.file).name)
            continue
        held.update({tensor.name: Path(block.file).name for tensor in tensors})
    for name, where in weights.items():
        if where not in unread and held.get(name) != where:
            yield Problem(file, f"says {name} is in {where}, where it is not")
            return
    for name, where in held.items():
        if name not in weights:
            yield Problem(file, f"does not list {name}, which is in {where}")
            return
