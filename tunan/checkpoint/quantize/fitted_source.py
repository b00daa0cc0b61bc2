"""A source whose weights were fitted (`fitting`): turned, smoothed, their integers beside them."""

import hashlib
from dataclasses import dataclass, field, replace
from threading import local
from typing import TYPE_CHECKING

from tunan.checkpoint.quantize.rotation import EMBEDDING, HEAD, Rotation
from tunan.checkpoint.quantize.scheme import Rounded
from tunan.checkpoint.source import Source, TensorInfo

if TYPE_CHECKING:
    import torch


@dataclass
class Fitted:
    """What was found, by tensor name: integers and their scales; what rows and columns of the
    source are multiplied by, once it is turned by `rotation`; which are held in the scheme's
    `finer`."""

    integers: dict[str, Rounded] = field(default_factory=dict)
    rows: dict[str, "torch.Tensor"] = field(default_factory=dict)
    columns: dict[str, "torch.Tensor"] = field(default_factory=dict)
    rotation: Rotation | None = None
    finer: frozenset[str] = frozenset()


class FittedSource:
    """See `tunan.checkpoint.source.Source`: another source, its weights turned and smoothed."""

    def __init__(self, source: Source, fitted: Fitted) -> None:
        self._source = source
        self.fitted = fitted
        self.path, self.auxiliary = source.path, source.auxiliary
        self.config, tensors = source.config, dict(source.tensors)
        if fitted.rotation is not None:
            self.config = {**source.config, "tie_word_embeddings": False}
            tensors[HEAD] = replace(tensors[self._stored(HEAD)], name=HEAD)
        self.tensors = {name: self._info(info) for name, info in tensors.items()}
        self._whole = _Whole()

    def _stored(self, name: str) -> str:
        """The head of a rotated model is made of the embedding, if it was tied to it."""
        return name if name in self._source.tensors else EMBEDDING

    def _info(self, info: TensorInfo) -> TensorInfo:
        changed = info.name in self.fitted.rows or info.name in self.fitted.columns
        return replace(info, dtype="F32") if changed or self.fitted.rotation else info

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """See `Source.rows`."""
        found = self._turned(name, start, stop)
        rows, columns = self.fitted.rows.get(name), self.fitted.columns.get(name)
        if rows is not None:
            own = rows[start:stop]
            found = found.float() * (own if found.dim() == 1 else own[:, None])
        return found if columns is None else found.float() * columns

    def _turned(self, name: str, start: int, stop: int) -> "torch.Tensor":
        rotation, stored = self.fitted.rotation, self._stored(name)
        if rotation is None:
            return self._source.rows(name, start, stop)
        if rotation.takes_rows(name):
            return rotation.turned(name, self._source.rows(stored, start, stop), self._gain)
        if self._whole.name != name:
            weight = self._source.rows(stored, 0, self._source.tensors[stored].shape[0])
            self._whole.tensor = rotation.turned(name, weight, self._gain)
            self._whole.name = name
        return self._whole.tensor[start:stop]

    def _gain(self, norm: str) -> "torch.Tensor":
        return self._source.rows(norm, 0, self._source.tensors[norm].shape[0]).double()

    def fingerprint(self) -> str:
        """Other integers make another checkpoint."""
        digest = hashlib.sha256(self._source.fingerprint().encode())
        for name, pair in sorted(self.fitted.integers.items()):
            digest.update(name.encode())
            for tensor in pair:
                digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def release(self, name: str) -> None:
        """See `Source.release`."""
        self._source.release(self._stored(name))


class _Whole(local):
    """The tensor that a thread turned last: it asks for its rows one chunk after another."""

    name = ""
    tensor: "torch.Tensor"
