"""`*.index.json`: which tensor of a sharded checkpoint lies in which file."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from tunan.checkpoint.companions import parse_json_object
from tunan.errors import CheckFailedError


def read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name, out of an index file's `weight_map`.

    Raises `CheckFailedError` where it is malformed or names a file outside its directory.
    """
    weights = parse_json_object(path).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise CheckFailedError(f"{path}: no weight_map in it")
    for name, file in weights.items():
        if not isinstance(file, str) or not file or Path(file).name != file:
            raise CheckFailedError(f"{path}: tensor {name!r}: {file!r} is not a plain file name")
    return weights


def shards_of(path: Path, weights: Mapping[str, str]) -> list[Path]:
    """The files an index names, sorted. Raises `CheckFailedError` naming the missing ones."""
    files = [path.parent / name for name in sorted(set(weights.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckFailedError(
            f"{path.parent / missing[0]}: this shard{more} is missing, though {path.name} names it"
        )
    return files


def check_agreement(
    path: Path, weights: Mapping[str, str], stored: Iterable[tuple[str, Path]]
) -> None:
    """Raises `CheckFailedError` for the first tensor of which the index and the files disagree."""
    found = dict(stored)
    for name, file in weights.items():
        if name not in found or found[name].name != file:
            there = f"; it is in {found[name].name}" if name in found else ""
            raise CheckFailedError(
                f"{path.parent / file}: tensor {name!r} is not in it, "
                f"though {path.name} says so{there}"
            )
    for name, file_path in found.items():
        if name not in weights:
            raise CheckFailedError(f"{file_path}: tensor '{name}' is in it but not in {path.name}")
