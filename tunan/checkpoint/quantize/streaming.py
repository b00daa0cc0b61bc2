"""Quantises the rows of a weight as they stream by, and adds up what that costs."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from tunan.checkpoint.quantize.rounding import restored, scales_of
from tunan.checkpoint.quantize.scheme import WeightScheme

if TYPE_CHECKING:
    import torch

# Scales kept for the other tensors made of the same rows (the scales themselves, the blocks of
# ranks): enough for several layers of the largest model.
CACHED_ELEMENTS = 4 << 20


class ScaleCache:
    """Scales of rows already searched; the oldest are forgotten. Threads may share one."""

    def __init__(self, elements: int = CACHED_ELEMENTS) -> None:
        self._limit = elements
        self._held = 0
        self._lock = Lock()
        self._scales: OrderedDict[tuple[str, int, int], torch.Tensor] = OrderedDict()

    def of(
        self, name: str, start: int, rows: "torch.Tensor", scheme: WeightScheme
    ) -> "torch.Tensor":
        """Scales [n, groups] of `rows` [n, columns], which begin at row `start` of `name`."""
        key = (name, start, start + len(rows))
        with self._lock:
            if key in self._scales:
                self._scales.move_to_end(key)
                return self._scales[key]
        scales = scales_of(rows, scheme)
        with self._lock:
            if key not in self._scales:
                self._scales[key] = scales
                self._held += scales.numel()
            while self._held > self._limit:
                _, oldest = self._scales.popitem(last=False)
                self._held -= oldest.numel()
        return scales


@dataclass
class RoundingError:
    """Sums of squares over what has been quantised so far."""

    error: float = 0.0
    signal: float = 0.0

    def add(self, rows: "torch.Tensor", integers: "torch.Tensor", scales: "torch.Tensor") -> None:
        """Counts `rows` [n, columns] against what they were rounded to."""
        import torch

        exact = rows.float()
        difference = restored(integers, scales).sub_(exact)
        self.error += float(torch.linalg.vector_norm(difference)) ** 2
        self.signal += float(torch.linalg.vector_norm(exact)) ** 2

    @property
    def relative(self) -> float:
        """||restored - exact|| / ||exact|| (Frobenius), to six digits; 0 for zeros."""
        ratio = (self.error / self.signal) ** 0.5 if self.signal else 0.0
        return float(f"{ratio:.6g}")
