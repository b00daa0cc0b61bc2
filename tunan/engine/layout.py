"""Which blocks to load: this rank's own, fused and cut already, or the plain ones.

Everything is checked here that costs no reading of data: that the files are there, their
sizes, their headers, and that `config.json` and the index are those the manifest lists.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunan.checkpoint.manifest import MANIFEST_FILE, Block, Manifest, rank_directory
from tunan.checkpoint.safetensors_header import StoredTensor, read_header
from tunan.errors import CheckFailedError

Shape = tuple[int, ...]

CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class PlannedBlock:
    """One file and the tensors of it that this process needs, in the order of their data.

    `whole`: it needs all of them.
    """

    path: Path
    sha256: str
    bytes: int
    tensors: tuple[StoredTensor, ...]
    whole: bool


def plain_blocks(
    directory: Path, manifest: Manifest, needed: Callable[[str], bool]
) -> list[PlannedBlock]:
    """The blocks in Hugging Face's layout that hold anything needed.

    Raises CheckFailedError, naming the file, for a block that is missing, of another size,
    damaged in its header, or that holds a tensor another one has too.
    """
    _check_carried(directory, manifest, CONFIG_FILE)
    return _planned(directory, manifest.blocks_of(None), needed)


def rank_blocks(
    directory: Path,
    manifest: Manifest,
    degree: int,
    rank: int,
    needed: Callable[[str], bool],
) -> list[PlannedBlock]:
    """The blocks of one tensor-parallel rank; none if the checkpoint has none for `degree`.

    Raises CheckFailedError as `plain_blocks`.
    """
    _check_carried(directory, manifest, CONFIG_FILE)
    folder = rank_directory(degree, rank) + "/"
    own = [block for block in manifest.blocks_of(rank) if block.file.startswith(folder)]
    return _planned(directory, own, needed)


def mismatch(
    blocks: Sequence[PlannedBlock], wanted: Mapping[str, Shape], integers: Collection[str] = ()
) -> str | None:
    """Why rank blocks do not fit a model's parameters, given by name and shape; None if they do.

    `integers` are those parameters that hold integers: a quantised weight is nothing else, and
    would be converted without a word.
    """
    tensors = [tensor for block in blocks for tensor in block.tensors]
    stored = {tensor.name: tensor.shape for tensor in tensors}
    for tensor in tensors:
        if tensor.name in wanted and (tensor.dtype[0] in "IU") != (tensor.name in integers):
            kind = "integers" if tensor.name in integers else "floating point"
            return f"{tensor.name} is {tensor.dtype} there and {kind} in the engine"
    for name, shape in wanted.items():
        if name not in stored:
            return f"they have no {name}"
        if stored[name] != shape:
            return f"{name} is {list(stored[name])} there and {list(shape)} in the engine"
    extra = next((name for name in stored if name not in wanted), None)
    return f"the engine has no {extra}" if extra else None


def _planned(
    directory: Path, blocks: Sequence[Block], needed: Callable[[str], bool]
) -> list[PlannedBlock]:
    planned = [_plan(directory, block, needed) for block in blocks]
    names = Counter(tensor.name for block in planned for tensor in block.tensors)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice:
        files = [b.path for b in planned if any(t.name == twice for t in b.tensors)]
        raise CheckFailedError(f"{files[1]}: tensor '{twice}' is in {files[0].name} too")
    return [block for block in planned if block.tensors]


def _plan(directory: Path, block: Block, needed: Callable[[str], bool]) -> PlannedBlock:
    path = directory / block.file
    try:
        size = path.stat().st_size
        if size != block.bytes:
            raise CheckFailedError(
                f"{path}: has {size} bytes, {MANIFEST_FILE} says {block.bytes}; "
                "fetch or convert it again"
            )
        stored = read_header(path)
    except FileNotFoundError as error:
        raise CheckFailedError(
            f"{path}: this block is missing, though {MANIFEST_FILE} lists it"
        ) from error
    except OSError as error:
        raise CheckFailedError(f"{path}: cannot be read ({error.strerror})") from error
    tensors = tuple(tensor for tensor in stored if needed(tensor.name))
    return PlannedBlock(path, block.sha256, block.bytes, tensors, len(tensors) == len(stored))


def _check_carried(directory: Path, manifest: Manifest, file: str) -> None:
    """A small file whose content decides how the weights are understood."""
    listed = next((item for item in manifest.files if item.file == file), None)
    if listed is None:
        return
    path = directory / file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckFailedError(f"{path}: cannot be read ({error.strerror})") from error
    if hashlib.sha256(content).hexdigest() != listed.sha256:
        raise CheckFailedError(
            f"{path}: its content is not what {MANIFEST_FILE} says (sha256); "
            "convert the checkpoint again after a change of its configuration"
        )
