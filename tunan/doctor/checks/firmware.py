"""The firmware on the NPUs, and whether driver and firmware accept each other."""

from tunan.ascend.probes.npu_smi_fields import Board, parse_board
from tunan.ascend.probes.versions import Package, firmware_fits, parse_package
from tunan.doctor.commands import upgrade
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import DRIVER, Subject

_FIRMWARE = "/usr/local/Ascend/firmware/version.info"


def look(subject: Subject) -> Answer | None:
    """By the ranges in their version.info files; by npu-smi's word where one is missing."""
    if not subject.wants_hardware:
        return None
    driver = parse_package(subject.sight.read(f"{DRIVER}/version.info") or "", DRIVER).value
    board = _board(subject)
    firmware = parse_package(subject.sight.read(_FIRMWARE) or "", _FIRMWARE).value
    if firmware is None and board and board.firmware:
        firmware = Package(board.firmware)
    needed = "firmware that fits the driver"
    if driver and driver.firmware_range:
        needed += f" ({' to '.join(driver.firmware_range)})"
    fix = upgrade(subject)
    if board and board.compatible is False:
        return Answer(False, f"{board.firmware}: npu-smi calls it not compatible", needed, fix)
    if firmware is None:
        return Answer(
            None, "neither version.info nor npu-smi tells it", needed, "npu-smi info -t board -i 0"
        )
    fits = firmware_fits(driver, firmware) if driver else None
    if fits is None and board and board.compatible:
        fits = True
    return Answer(fits, firmware.version, needed, fix)


def _board(subject: Subject) -> Board | None:
    if not subject.devices:
        return None
    number = str(subject.devices[0].npu)
    return parse_board(
        subject.sight.run("npu-smi", "info", "-t", "board", "-i", number).output
    ).value


CHECK = Check("firmware", "error", look)
