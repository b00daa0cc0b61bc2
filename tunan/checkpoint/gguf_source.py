"""A GGUF file as a source: Hugging Face names, config and tokenizer; rows dequantised on demand."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from tunan.checkpoint.fingerprint import fingerprint
from tunan.checkpoint.gguf_config import GGUFDescription, config_of
from tunan.checkpoint.gguf_header import GGUFFile, GGUFTensor, read_gguf
from tunan.checkpoint.gguf_names import ROPE_FACTORS, JoinedHeads, Placement, placements
from tunan.checkpoint.gguf_tokenizer import tokenizer_files
from tunan.checkpoint.mapped_file import MappedFile
from tunan.checkpoint.safetensors_source import tensor_at
from tunan.checkpoint.source import TensorInfo
from tunan.errors import CheckFailedError, UsageError

# Types whose bytes are plain numbers, by their safetensors code; every other is dequantised.
PLAIN = {
    GGMLQuantizationType.F32: "F32",
    GGMLQuantizationType.F16: "F16",
    GGMLQuantizationType.BF16: "BF16",
    GGMLQuantizationType.F64: "F64",
}
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True)
class _Stored:
    """A tensor of a file as rows: all dimensions but the last are one."""

    file: MappedFile
    tensor: GGUFTensor

    @property
    def rows(self) -> int:
        return prod(self.tensor.shape[:-1])

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) as a 2-d tensor: a view where stored plainly, else new float32."""
        row_bytes = (self.tensor.stop - self.tensor.start) // self.rows
        begin = self.tensor.start + start * row_bytes
        end = self.tensor.start + stop * row_bytes
        shape = (stop - start, self.tensor.shape[-1])
        self.file.will_need(begin, end)
        if self.tensor.kind in PLAIN:
            return tensor_at(self.file, begin, end, PLAIN[self.tensor.kind], shape)
        if start == stop:
            return torch.empty(shape)
        data = np.frombuffer(self.file.bytes, np.uint8, end - begin, begin)
        with np.errstate(all="ignore"):  # damaged scales come out as NaN or Inf, for others to see
            values = dequantize(data.reshape(stop - start, row_bytes), self.tensor.kind)
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


class GGUFSource:
    """See `tunan.checkpoint.source.Source`; made by `open_gguf`."""

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        auxiliary: dict[str, bytes],
        stored: dict[str, _Stored],
        placed: dict[str, Placement | JoinedHeads],
    ) -> None:
        self.path = path
        self.config = config
        self.auxiliary = auxiliary
        self._stored = stored
        self._placed = placed
        self.tensors = {name: self._info(name, place) for name, place in placed.items()}

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop): a view where stored plainly and in order, else new float32."""
        place, info = self._placed[name], self.tensors[name]
        stored = self._stored[place.tensor]
        if len(info.shape) == 1 and isinstance(place, Placement):
            return self._vector(stored, place)[start:stop]
        start, stop, _ = slice(start, stop).indices(info.shape[0])
        if isinstance(place, JoinedHeads):
            return self._joined(place, start, stop)
        if not place.head:
            return stored.read(place.first + start, place.first + stop)
        first, last = start - start % place.head, stop + -stop % place.head
        order = half_to_interleaved(first, last, place.head)[start - first : stop - first]
        return stored.read(first, last)[order - first]

    def _vector(self, stored: _Stored, place: Placement) -> torch.Tensor:
        values = stored.read(0, 1)[0]
        return values[half_to_interleaved(0, len(values), place.head)] if place.head else values

    def _joined(self, place: JoinedHeads, start: int, stop: int) -> torch.Tensor:
        keys, values = self._stored[place.tensor], self._stored[place.values]
        height, latent = place.key_rows + place.value_rows, place.shape[1]
        heads = []
        for head in range(start // height, -(-stop // height)):
            transposed = keys.read(head * latent, (head + 1) * latent).float()
            below = values.read(head * place.value_rows, (head + 1) * place.value_rows)
            heads.append(torch.cat([transposed.T, below.float()]))
        first = start // height * height
        joined = torch.cat(heads) if heads else torch.empty(0, latent)
        return joined[start - first : stop - first]

    def _info(self, name: str, place: Placement | JoinedHeads) -> TensorInfo:
        stored = self._stored[place.tensor]
        tensor = stored.tensor
        size = (tensor.stop - tensor.start) * prod(place.shape) // prod(tensor.shape)
        dtype = PLAIN.get(tensor.kind, "F32")
        if isinstance(place, JoinedHeads):
            values = self._stored[place.values].tensor
            size, dtype = tensor.stop - tensor.start + values.stop - values.start, "F32"
        return TensorInfo(name, place.shape, dtype, size, stored.file.path)

    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return fingerprint({stored.file.path for stored in self._stored.values()})

    def release(self, name: str) -> None:
        """See `Source.release`."""
        place = self._placed[name]
        stored = self._stored[place.tensor]
        start, stop = stored.tensor.start, stored.tensor.stop
        if isinstance(place, JoinedHeads):
            values = self._stored[place.values]
            values.file.release(values.tensor.start, values.tensor.stop)
        elif place.shape != stored.tensor.shape:  # one expert of many
            row_bytes = (stop - start) // stored.rows
            start += place.first * row_bytes
            stop = start + place.shape[0] * row_bytes
        stored.file.release(start, stop)


def half_to_interleaved(start: int, stop: int, head: int) -> torch.Tensor:
    """For rows [start, stop) in Hugging Face order, the rows where llama.cpp keeps them.

    Hugging Face rotates dimension i of a head with i + head / 2, llama.cpp 2i with 2i + 1,
    and its converter reorders the rows of q and k to suit. int64 [stop - start].
    """
    row = torch.arange(start, stop)
    within = row % head
    half = head // 2
    return row - within + within % half * 2 + within // half


def open_gguf(path: Path) -> GGUFSource:
    """Opens a GGUF file, or the first of a split one together with the others.

    Raises `CheckFailedError`, naming the file and the tensor, where it is damaged,
    `UsageError` for an architecture, tokenizer or quantisation Tunan does not read.
    """
    parts = _parts(path, read_gguf(path))
    metadata = parts[0].metadata
    stored: dict[str, _Stored] = {}
    for part in parts:
        for tensor in part.tensors:
            if tensor.name in stored:
                raise CheckFailedError(f"{part.file.path}: tensor '{tensor.name}' is there twice")
            stored[tensor.name] = _Stored(part.file, tensor)
    if EMBEDDING not in stored:
        raise CheckFailedError(f"{path}: tensor '{EMBEDDING}' is missing")
    factors = stored.pop(ROPE_FACTORS, None)
    description = GGUFDescription(
        path, metadata, stored.keys(), tuple(factors.read(0, 1)[0].tolist()) if factors else ()
    )
    config = config_of(description, stored[EMBEDDING].rows)
    _refuse_unreadable(stored)
    placed = placements(path, config, {name: item.tensor for name, item in stored.items()})
    return GGUFSource(path, config, tokenizer_files(path, metadata), stored, placed)


def _parts(path: Path, first: GGUFFile) -> list[GGUFFile]:
    count = first.metadata.get("split.count", 1)
    if type(count) is not int or count < 0:
        raise CheckFailedError(f"{path}: metadata split.count is {count!r}")
    if count < 2:
        return [first]
    if first.metadata.get("split.no") != 0 or f"-00001-of-{count:05d}" not in path.name:
        raise UsageError(f"{path}: one part of a split GGUF; give the first, ...-00001-of-N.gguf")
    parts = [first]
    for number in range(2, count + 1):
        name = path.name.replace(f"-00001-of-{count:05d}", f"-{number:05d}-of-{count:05d}")
        part = path.with_name(name)
        if not part.is_file():
            raise CheckFailedError(f"{part}: this part of {path.name} is missing")
        parts.append(read_gguf(part))
    return parts


def _refuse_unreadable(stored: dict[str, _Stored]) -> None:
    """Finds types that the gguf package cannot dequantise before anything is converted."""
    kinds = {item.tensor.kind: item for item in stored.values() if item.tensor.kind not in PLAIN}
    for kind, item in kinds.items():
        _, block_bytes = GGML_QUANT_SIZES[kind]
        try:
            dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except NotImplementedError as error:
            raise UsageError(
                f"{item.file.path}: tensor '{item.tensor.name}' is {kind.name}, "
                "which Tunan cannot dequantise"
            ) from error
