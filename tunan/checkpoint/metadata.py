"""The small files around the blocks: config.json, the index, tokenizer and its like."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tunan.checkpoint.blocks import sync_directory
from tunan.checkpoint.manifest import CarriedFile, rank_directory
from tunan.checkpoint.plan import Layout, PlannedBlock
from tunan.checkpoint.quantize.compressed_tensors import quantization_config
from tunan.checkpoint.quantize.modelslim import DESCRIPTION_FILE, description
from tunan.checkpoint.source import Source

INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"


def write_metadata(
    source: Source, blocks: Iterable[PlannedBlock], layout: Layout, directory: Path
) -> tuple[CarriedFile, ...]:
    """Writes every file beside the blocks, the manifest excepted, and syncs them."""
    carried = [
        _write(directory, file, content)
        for file, content in _contents(source, list(blocks), layout)
    ]
    for parent in {(directory / file.file).parent for file in carried}:
        sync_directory(parent)
    return tuple(carried)


def converted_config(config: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """The configuration of the converted checkpoint: its number formats are the new ones.

    `torch_dtype` is what every reader knows, `dtype` what transformers 5 writes.
    """
    converted = dict(config)
    converted["torch_dtype"] = layout.precision.torch_name
    if "dtype" in converted:
        converted["dtype"] = layout.precision.torch_name
    if layout.weights is not None and not layout.int8_cache:
        converted["quantization_config"] = quantization_config(config, layout.weights, layout.finer)
    return converted


def index_of(blocks: Iterable[PlannedBlock]) -> dict[str, Any]:
    """The Hugging Face index of blocks that lie in one directory."""
    blocks = list(blocks)
    weights = {entry.name: Path(block.file).name for block in blocks for entry in block.entries}
    return {
        "metadata": {"total_size": sum(block.bytes for block in blocks)},
        "weight_map": dict(sorted(weights.items())),
    }


def _contents(
    source: Source, blocks: list[PlannedBlock], layout: Layout
) -> Iterator[tuple[str, bytes]]:
    yield CONFIG_FILE, _json(converted_config(source.config, layout))
    if layout.int8_cache:
        yield DESCRIPTION_FILE, _json(description(blocks))
    yield from sorted(source.auxiliary.items())
    plain = [block for block in blocks if block.rank is None]
    yield INDEX_FILE, _json(index_of(plain))
    ranks = sorted({block.rank for block in blocks if block.rank is not None})
    for rank in ranks:
        mine = [block for block in blocks if block.rank == rank]
        yield f"{rank_directory(len(ranks), rank)}/{INDEX_FILE}", _json(index_of(mine))


def _write(directory: Path, file: str, content: bytes) -> CarriedFile:
    with (directory / file).open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    return CarriedFile(file=file, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _json(content: Mapping[str, Any]) -> bytes:
    # In ASCII, as half of a surrogate pair, which JSON can say and UTF-8 cannot, stays readable.
    return (json.dumps(content, indent=2) + "\n").encode()
