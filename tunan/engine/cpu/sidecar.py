"""Packed weights beside the checkpoint: written at the first start, mapped at every later one.

They lie in `DIR/.tunan/packed-LAYOUT/tp-DEGREE-RANK/`, or in the user's cache directory where
DIR is read-only, one file a linear layer. A file counts only if it was made from this
checkpoint, for this layout and rank, and if its content has the hash in its header; that is
checked once, and again whenever the file has changed since.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path

import torch

from tunan.engine.cpu import packed_file
from tunan.engine.cpu.identity import checkpoint_identity
from tunan.engine.cpu.packed_file import Pack, PackedWeights
from tunan.engine.layout import PlannedBlock
from tunan.engine.verified import VerifiedBlocks
from tunan.errors import TunanError
from tunan.supervisor.directories import Directories

FOLDER = ".tunan"


@dataclass(frozen=True)
class Packing:
    """What packed weights depend on besides the weights: the kernels' layout (which names the
    kind of instruction set and a version), the tensor-parallel rank, and `reading`, whatever else
    decides how the engine understands the checkpoint."""

    layout: str
    degree: int
    rank: int
    reading: str

    @property
    def folder(self) -> Path:
        return Path(f"packed-{self.layout}") / f"tp-{self.degree}-{self.rank}"


@dataclass
class Sidecar:
    """The packed weights of one rank of one checkpoint.

    `places`: where they may lie, in the order of preference; none: they stay in memory.
    `mapped` and `packed` count the layers taken from files and those packed here since the
    last `report`; `unkept` those of them that could not be written anywhere.
    """

    identity: str
    packing: Packing
    places: tuple[Path, ...]
    mapped: int = 0
    packed: int = 0
    unkept: int = 0
    _records: dict[Path, VerifiedBlocks] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Path, packing: Packing) -> "Sidecar":
        """That of a checkpoint directory; what is no readable directory keeps nothing."""
        try:
            identity = checkpoint_identity(checkpoint)
        except (OSError, TunanError):
            return cls("", packing, ())
        name = hashlib.sha256(str(checkpoint.resolve()).encode()).hexdigest()[:32]
        cache = Directories.of_user().cache / "packed" / name
        return cls(
            identity, packing, (checkpoint / FOLDER / packing.folder, cache / packing.folder)
        )

    def find(
        self, layer: str, form: str, size: int, fits: Callable[[torch.Tensor], bool]
    ) -> PackedWeights | None:
        """The verified packed weights of `layer`, mapped; None if they are yet to be made.

        `form` names what was packed how: bits, group, type of the scales. `fits` says whether the
        packed bytes are what they should be by their own account.
        """
        for place in self.places:
            found = packed_file.read(place / f"{layer}.bin", self._key(layer, form), size)
            if found is not None and fits(found.data) and self._verified(place, found):
                self.mapped += 1
                return found
        return None

    def make(self, layer: str, form: str, size: int, pack: Pack) -> PackedWeights:
        """Packs `layer`, into a file where one can be written."""
        self.packed += 1
        for place in self.places:
            path = place / f"{layer}.bin"
            try:
                written = packed_file.write(path, self._key(layer, form), size, pack)
            except OSError:
                continue
            self._verified(place, written, known_good=True)
            return written
        self.unkept += 1
        return packed_file.in_memory(size, pack)

    def report(self) -> str:
        """The counts in words; counts anew from here."""
        lost = f", {self.unkept} of them not kept" if self.unkept else ""
        text = f"packed weights: {self.mapped} mapped, {self.packed} made{lost}"
        self.mapped = self.packed = self.unkept = 0
        return text

    def _key(self, layer: str, form: str) -> str:
        text = json.dumps([self.identity, astuple(self.packing), layer, form])
        return hashlib.sha256(text.encode()).hexdigest()

    def _verified(self, place: Path, weights: PackedWeights, known_good: bool = False) -> bool:
        path = weights.path
        if path is None:
            return False
        record = self._records.get(place)
        if record is None:
            record = VerifiedBlocks.of(place, self.packing.degree, self.packing.rank)
            self._records[place] = record
        block = PlannedBlock(path.resolve(), weights.sha256, weights.data.numel(), (), True)
        if record.holds(block, weights.status):
            return True
        if not known_good and weights.hash() != weights.sha256:
            return False
        record.add(block)
        record.save()
        return True
