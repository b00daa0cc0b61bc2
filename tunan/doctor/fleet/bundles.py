"""A bundle of each machine that is looked at over ssh, into one folder."""

from collections.abc import Sequence
from pathlib import Path

from tunan.doctor.bundle import write_bundle
from tunan.doctor.fleet.hosts import bare
from tunan.doctor.fleet.visit import Visited
from tunan.doctor.masking import Mask
from tunan.errors import OutsideError, UsageError


def prepare(folder: Path) -> None:
    """Makes `folder`. Raises `UsageError` if something is in it, `OutsideError` if it cannot be
    made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder}: is not empty; name a new folder, each machine gets a file")
    except OSError as error:
        raise OutsideError(f"{folder}: {error.strerror}; name a folder that can be made") from None


def write_bundles(folder: Path, visits: Sequence[Visited]) -> list[Path]:
    """`node-1.tar.gz`, ... in the order in which the machines were named, without those that were
    lost. All are masked alike, so that they can be compared. Raises `OutsideError`."""
    sights = [visit.machine.subject.sight for visit in visits if visit.machine]
    told = [str(sight.asked.get("system:hostname") or "") for sight in sights]
    mask = Mask(*told, *(bare(visit.name) for visit in visits))
    written: list[Path] = []
    for number, visit in enumerate(visits, 1):
        if visit.machine and visit.examination:
            path = folder / f"node-{number}.tar.gz"
            write_bundle(path, visit.machine.subject, visit.examination, None, mask)
            written.append(path)
    return written
