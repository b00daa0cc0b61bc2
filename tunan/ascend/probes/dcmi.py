"""Ascend's device management library (libdcmi.so) through ctypes: numbers without a text between.

It runs in a process of its own (`python -m tunan.ascend.probes.dcmi LIBRARY`), because a call into
a stuck driver never returns and a library that does not fit can end the process.
Structures and codes as in dcmi_interface_api.h of the driver (version 2 of the interface).
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

LIBRARIES = ("/usr/local/dcmi/libdcmi.so", "/usr/local/Ascend/driver/lib64/driver/libdcmi.so")
HEALTH = {0: "OK", 1: "Warning", 2: "Alarm", 3: "Critical"}
_AICORE = 2
_ECC_DDR = 0
_ECC_HBM = 2
_MOST_CARDS = 64
_MOST_PROCESSES = 32
_MB = 1 << 20


class _ChipInfo(ctypes.Structure):
    _fields_ = [
        ("chip_type", ctypes.c_char * 32),
        ("chip_name", ctypes.c_char * 32),
        ("chip_ver", ctypes.c_char * 32),
        ("aicore_cnt", ctypes.c_uint),
    ]


class _Hbm(ctypes.Structure):
    _fields_ = [
        ("memory_size", ctypes.c_ulonglong),
        ("freq", ctypes.c_uint),
        ("memory_usage", ctypes.c_ulonglong),
        ("temp", ctypes.c_int),
        ("bandwith_util_rate", ctypes.c_uint),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [
        ("memory_size", ctypes.c_ulonglong),
        ("memory_available", ctypes.c_ulonglong),
        ("freq", ctypes.c_uint),
        ("hugepagesize", ctypes.c_ulong),
        ("hugepages_total", ctypes.c_ulong),
        ("hugepages_free", ctypes.c_ulong),
        ("utiliza", ctypes.c_uint),
        ("reserve", ctypes.c_ubyte * 60),
    ]


class _Ecc(ctypes.Structure):
    _fields_ = [
        ("enable_flag", ctypes.c_int),
        ("single_bit_error_cnt", ctypes.c_uint),
        ("double_bit_error_cnt", ctypes.c_uint),
        ("total_single_bit_error_cnt", ctypes.c_uint),
        ("total_double_bit_error_cnt", ctypes.c_uint),
        ("single_bit_isolated_pages_cnt", ctypes.c_uint),
        ("double_bit_isolated_pages_cnt", ctypes.c_uint),
    ]


class _Process(ctypes.Structure):
    _fields_ = [("proc_id", ctypes.c_int), ("proc_mem_usage", ctypes.c_ulong)]


class _Pcie(ctypes.Structure):
    _fields_ = [
        ("venderid", ctypes.c_uint),
        ("subvenderid", ctypes.c_uint),
        ("deviceid", ctypes.c_uint),
        ("subdeviceid", ctypes.c_uint),
        ("domain", ctypes.c_int),
        ("bdf_busid", ctypes.c_uint),
        ("bdf_deviceid", ctypes.c_uint),
        ("bdf_funcid", ctypes.c_uint),
        ("reserve", ctypes.c_ubyte * 32),
    ]


class DcmiError(Exception):
    """The library says no; `args[0]` is one line."""


class Dcmi:
    """The library at `path`, initialised. Raises `DcmiError`."""

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise DcmiError(f"{path} cannot be loaded: {error}") from None
        if (code := self._call("dcmi_init")) != 0:
            raise DcmiError(f"dcmi_init failed with {code}")

    def devices(self) -> list[dict[str, Any]]:
        """One entry a die, with the fields of `NpuDevice` and `processes`. Raises `DcmiError`."""
        return [
            self._device(card, chip) for card in self._cards() for chip in range(self._chips(card))
        ]

    def driver(self) -> str | None:
        """The driver's version."""
        text = ctypes.create_string_buffer(64)
        if self._call("dcmi_get_driver_version", text, ctypes.c_uint(len(text))) != 0:
            return None
        return _text(text.value)

    def _call(self, name: str, *arguments: Any) -> int | None:
        """The function's code; None where this version of the library has no such function."""
        try:
            function: Callable[..., int] = getattr(self._library, name)
        except AttributeError:
            return None
        return int(function(*arguments))

    def _cards(self) -> list[int]:
        count, cards = ctypes.c_int(), (ctypes.c_int * _MOST_CARDS)()
        code = self._call("dcmi_get_card_list", ctypes.byref(count), cards, _MOST_CARDS)
        if code != 0:
            raise DcmiError(f"dcmi_get_card_list failed with {code}")
        return list(cards[: max(0, min(count.value, _MOST_CARDS))])

    def _chips(self, card: int) -> int:
        most, controller, cpu = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        parts = (ctypes.byref(most), ctypes.byref(controller), ctypes.byref(cpu))
        if self._call("dcmi_get_device_id_in_card", card, *parts) != 0:
            return 1
        return max(1, min(most.value, 8))

    def _number(self, name: str, card: int, chip: int, *more: int) -> int | None:
        value = ctypes.c_int()
        if self._call(name, card, chip, *more, ctypes.byref(value)) != 0:
            return None
        return value.value

    def _filled(self, name: str, structure: Any, card: int, chip: int, *more: int) -> Any:
        code = self._call(name, card, chip, *more, ctypes.byref(structure))
        return structure if code == 0 else None

    def _device(self, card: int, chip: int) -> dict[str, Any]:
        info = self._filled("dcmi_get_device_chip_info", _ChipInfo(), card, chip)
        hbm = self._filled("dcmi_get_device_hbm_info", _Hbm(), card, chip)
        memory = self._filled("dcmi_get_device_memory_info_v3", _Memory(), card, chip)
        counted = _ECC_HBM if hbm and hbm.memory_size else _ECC_DDR
        ecc = self._filled("dcmi_get_device_ecc_info", _Ecc(), card, chip, counted)
        power = self._number("dcmi_get_device_power_info", card, chip)
        health = self._number("dcmi_get_device_health", card, chip)
        load = self._number("dcmi_get_device_utilization_rate", card, chip, _AICORE)
        return {
            "npu": card,
            "chip": chip,
            "physical_id": self._physical_id(card, chip),
            "name": _text(info.chip_name) if info else None,
            "health": HEALTH.get(health) if health is not None else None,
            # Tenths of a watt; a negative one is "unknown".
            "power_w": power / 10 if power is not None and power >= 0 else None,
            "temperature_c": self._number("dcmi_get_device_temperature", card, chip),
            "bus": self._bus(card, chip),
            "aicore_percent": load if load is not None and 0 <= load <= 100 else None,
            "ddr_used_mb": memory.memory_size * memory.utiliza // 100 if memory else None,
            "ddr_total_mb": memory.memory_size if memory else None,
            "hbm_used_mb": hbm.memory_usage if hbm else None,
            "hbm_total_mb": hbm.memory_size if hbm else None,
            "hugepages_used": memory.hugepages_total - memory.hugepages_free if memory else None,
            "hugepages_total": memory.hugepages_total if memory else None,
            "ecc_single_bit": ecc.single_bit_error_cnt if ecc else None,
            "ecc_double_bit": ecc.double_bit_error_cnt if ecc else None,
            "processes": self._processes(card, chip),
        }

    def _physical_id(self, card: int, chip: int) -> int | None:
        logic, physical = ctypes.c_int(), ctypes.c_uint()
        if self._call("dcmi_get_device_logic_id", ctypes.byref(logic), card, chip) != 0:
            return None
        number = ctypes.c_uint(logic.value)
        name = "dcmi_get_device_phyid_from_logicid"
        return physical.value if self._call(name, number, ctypes.byref(physical)) == 0 else None

    def _bus(self, card: int, chip: int) -> str | None:
        at = self._filled("dcmi_get_device_pcie_info_v2", _Pcie(), card, chip)
        if at is None:
            return None
        return f"{at.domain:04X}:{at.bdf_busid:02X}:{at.bdf_deviceid:02X}.{at.bdf_funcid:X}"

    def _processes(self, card: int, chip: int) -> list[dict[str, int]] | None:
        held, count = (_Process * _MOST_PROCESSES)(), ctypes.c_int(_MOST_PROCESSES)
        name = "dcmi_get_device_resource_info"
        if self._call(name, card, chip, held, ctypes.byref(count)) != 0:
            return None
        number = max(0, min(count.value, _MOST_PROCESSES))
        return [
            {"pid": process.proc_id, "memory_mb": process.proc_mem_usage // _MB}
            for process in held[:number]
        ]


def _text(raw: bytes) -> str | None:
    return raw.decode("utf-8", errors="replace").strip() or None


def main() -> int:
    """Prints what the library at `sys.argv[1]` says, as JSON; 1 if it says nothing."""
    try:
        library = Dcmi(sys.argv[1])
        print(json.dumps({"driver": library.driver(), "devices": library.devices()}))  # noqa: T201
    except DcmiError as error:
        print(json.dumps({"error": str(error)}))  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
