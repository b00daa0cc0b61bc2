"""A Hugging Face directory of safetensors files as a source: mapped, never copied."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tunan.checkpoint.companions import read_companions, read_config
from tunan.checkpoint.fingerprint import fingerprint
from tunan.checkpoint.mapped_file import MappedFile
from tunan.checkpoint.safetensors_header import DTYPE_BYTES, StoredTensor, read_header
from tunan.checkpoint.shard_index import check_agreement, read_index, shards_of
from tunan.checkpoint.source import TensorInfo
from tunan.errors import CheckFailedError

TORCH_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "U16": torch.uint16, "I16": torch.int16, "F16": torch.float16, "BF16": torch.bfloat16,
    "U32": torch.uint32, "I32": torch.int32, "F32": torch.float32,
    "U64": torch.uint64, "I64": torch.int64, "F64": torch.float64,
}  # fmt: skip
INDEX = "model.safetensors.index.json"
SHARD_NAME = re.compile(r"(.+-)(\d+)(-of-)(\d+)(\.safetensors)")


class SafetensorsSource:
    """See `tunan.checkpoint.source.Source`; made by `open_safetensors`."""

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        auxiliary: Mapping[str, bytes],
        stored: Mapping[Path, list[StoredTensor]],
    ) -> None:
        self.path = path
        self.config = config
        self.auxiliary = auxiliary
        self.tensors: dict[str, TensorInfo] = {}
        self._stored: dict[str, StoredTensor] = {}
        self._files = {file: MappedFile(file) for file in stored}
        for file, tensors in stored.items():
            for tensor in tensors:
                size = tensor.stop - tensor.start
                info = TensorInfo(tensor.name, tensor.shape, tensor.dtype, size, file)
                self.tensors[tensor.name] = info
                self._stored[tensor.name] = tensor

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop), a view of the mapped file unless the file misaligns them."""
        stored = self._stored[name]
        file = self._files[self.tensors[name].file]
        shape = stored.shape
        begin, end = stored.start, stored.stop
        if shape:
            row_bytes = (end - begin) // shape[0] if shape[0] else 0
            start, stop, _ = slice(start, stop).indices(shape[0])
            shape = (max(stop - start, 0), *shape[1:])
            begin, end = begin + start * row_bytes, begin + stop * row_bytes
        file.will_need(begin, end)
        return tensor_at(file, begin, end, stored.dtype, shape)

    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return fingerprint([self.path / "config.json", *self._files])

    def release(self, name: str) -> None:
        """See `Source.release`."""
        stored = self._stored[name]
        self._files[self.tensors[name].file].release(stored.start, stored.stop)


def tensor_at(
    file: MappedFile, begin: int, end: int, dtype: str, shape: tuple[int, ...]
) -> torch.Tensor:
    """Bytes [begin, end) of a mapped file as a tensor, copied only if they are misaligned."""
    if end <= begin:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    data = torch.frombuffer(file.bytes, dtype=torch.uint8, count=end - begin, offset=begin)
    if begin % DTYPE_BYTES[dtype]:
        data = data.clone()
    return data.view(TORCH_DTYPES[dtype]).reshape(shape)


def open_safetensors(path: Path) -> SafetensorsSource:
    """Opens a directory with `model.safetensors`, or with shards and their index, or with
    any `*.safetensors` without an index.

    Raises `CheckFailedError`, naming the file and the tensor, where a shard is missing or
    damaged, a tensor is in two of them, or the index disagrees with the files.
    """
    config = read_config(path / "config.json")
    auxiliary = read_companions(path)
    index = path / INDEX
    weights = read_index(index) if index.is_file() else {}
    files = shards_of(index, weights) if weights else _unindexed(path)
    stored = {file: read_header(file) for file in files}
    owner: dict[str, Path] = {}
    for file, tensors in stored.items():
        for tensor in tensors:
            if tensor.name in owner:
                other = owner[tensor.name].name
                raise CheckFailedError(f"{file}: tensor '{tensor.name}' is in {other} as well")
            owner[tensor.name] = file
    if weights:
        check_agreement(index, weights, owner.items())
    if not owner:
        raise CheckFailedError(f"{path}: its safetensors files hold no tensors")
    return SafetensorsSource(path, config, auxiliary, stored)


def _unindexed(path: Path) -> list[Path]:
    whole = path / "model.safetensors"
    if whole.is_file():
        return [whole]
    files = sorted(path.glob("*.safetensors"))
    for file in files:
        _refuse_gaps(file)
    return files


def _refuse_gaps(file: Path) -> None:
    """Without an index only names like `model-00002-of-00004` tell that a shard is missing."""
    match = SHARD_NAME.fullmatch(file.name)
    if match is None:
        return
    start, number, of, count, suffix = match.groups()
    for index in range(1, int(count) + 1):
        sibling = file.with_name(f"{start}{index:0{len(number)}d}{of}{count}{suffix}")
        if not sibling.is_file():
            raise CheckFailedError(f"{sibling}: this shard is missing")
