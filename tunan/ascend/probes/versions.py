"""Versions as Ascend writes them, and the files that hold them."""

import re
from dataclasses import dataclass

from tunan.ascend.probes.probe import Probe

Key = tuple[tuple[int, int], ...]
_LENGTH = 6
_RANGE = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Package:
    """A version.info or *_install.info file. `firmware_range` and `driver_ranges`: what a driver
    says of firmware, and firmware of drivers: pairs of lowest and highest version."""

    version: str
    architecture: str | None = None
    path: str | None = None
    firmware_range: tuple[str, str] | None = None
    driver_ranges: tuple[tuple[str, str], ...] = ()


def parse_package(text: str, source: str) -> Probe[Package]:
    """Reads `key=value` lines; keys in either case (`Version=`, `version=`)."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            fields.setdefault(key.strip().lower(), value.strip())
    version = fields.get("version") or fields.get("package_version")
    if not version:
        return Probe.failed(source, "it names no version")
    firmware = _pairs(fields.get("compatible_version_fw", ""))
    return Probe(
        Package(
            version=version,
            architecture=fields.get("arch"),
            path=fields.get("path"),
            firmware_range=firmware[0] if firmware else None,
            driver_ranges=_pairs(fields.get("compatible_version_drv", "")),
        ),
        source,
    )


def version_key(text: str) -> Key:
    """For comparing: 23.0.rc3 < 23.0.0 < 23.0.7 < 24.1.rc1; 8.2.RC1 < 8.2.0; 8.5 = 8.5.0."""
    parts = [_part(part) for part in text.strip().strip(".").split(".")]
    # A part that is not there is zero, which comes after any candidate.
    return tuple(parts + [(1, 0)] * (_LENGTH - len(parts)))


def is_at_least(version: str, lowest: str) -> bool:
    """Whether `version` is `lowest` or newer."""
    return version_key(version) >= version_key(lowest)


def is_within(version: str, lowest: str, highest: str) -> bool:
    """Whether `version` is in a range of a version.info file, both ends included.

    A highest version that ends in a dot stands for all that begin with it.
    """
    if highest.endswith("."):
        begin = highest.rstrip(".")
        return version == begin or version.startswith(highest)
    return version_key(lowest) <= version_key(version) <= version_key(highest)


def firmware_fits(driver: Package, firmware: Package) -> bool | None:
    """Whether driver and firmware accept each other; None where neither says."""
    answers: list[bool] = []
    if driver.firmware_range:
        answers.append(is_within(firmware.version, *driver.firmware_range))
    if firmware.driver_ranges:
        within = (is_within(driver.version, *pair) for pair in firmware.driver_ranges)
        answers.append(any(within))
    return all(answers) if answers else None


def _part(part: str) -> tuple[int, int]:
    if re.fullmatch(r"[0-9]{1,9}", part):
        return (1, int(part))
    # rc3, b030, T10: before the release that bears the plain number.
    match = re.search(r"([0-9]{1,9})$", part)
    return (0, int(match[1]) if match else 0)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    found = [tuple(end.strip() for end in inside.split(",")) for inside in _RANGE.findall(text)]
    return tuple((ends[0], ends[1]) for ends in found if len(ends) == 2 and all(ends))
