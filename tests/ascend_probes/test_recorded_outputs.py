"""The parsers over outputs recorded on real machines, where such a collection is at hand.

TUNAN_RECORDED_OUTPUTS names its folder. It is not part of the repository, so this is skipped
without it.
"""

import os
import re
from pathlib import Path

import pytest

from tunan.ascend.probes import hccn, npu_smi_fields
from tunan.ascend.probes.lscpu import parse_lscpu
from tunan.ascend.probes.npu_smi_table import parse_table
from tunan.ascend.probes.npu_smi_topology import parse_topology
from tunan.ascend.probes.versions import parse_package

FOLDER = os.environ.get("TUNAN_RECORDED_OUTPUTS")
FILES = sorted(Path(FOLDER).glob("*.txt")) if FOLDER else []
pytestmark = pytest.mark.skipif(not FOLDER, reason="TUNAN_RECORDED_OUTPUTS names no folder")


def having(pattern: str) -> list[str]:
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in FILES)
    return [text for text in texts if re.search(pattern, text)]


def test_every_table_gives_its_devices() -> None:
    tables = having(r"Health +\|")
    assert len(tables) > 8
    for text in tables:
        report = parse_table(text).value
        assert report
        # A first row begins with the module's number and has a health.
        rows = re.findall(r"(?m)^\| *\d+ +\|? *\S+ *\| (?:OK|Alarm|Warning)", text)
        assert len(report.devices) == len(rows)
        assert all(device.temperature_c for device in report.devices)
        full = [device for device in report.devices if device.bus]
        assert all(device.memory_total_mb for device in full)
        assert len(full) >= len(report.devices) - 1


def test_every_error_is_told_with_its_code() -> None:
    for text in having(r"ret is -80"):
        assert re.search(r"-80\d\d", parse_table(text).error or "")


def test_the_other_outputs_are_read() -> None:
    for text in having("HCCS +X"):
        topology = parse_topology(text).value
        assert topology
        assert all(topology.affinity.values())
    for text in having("CPU max MHz"):
        processor = parse_lscpu(text).value
        assert processor
        assert processor.kunpeng
    for text in having("Chip Logic ID"):
        rows = npu_smi_fields.parse_mapping(text).value
        assert rows
        assert len(rows) == 8
    for text in having("Software Version"):
        board = npu_smi_fields.parse_board(text).value
        assert board
        assert board.compatible
    for text in having("compatible_version_fw"):
        assert parse_package(text, "version.info").value
    for text in having("tls switch"):
        assert hccn.parse_tls(text).value is False
        assert hccn.parse_ping(text).value == hccn.Ping(3, 3)
        assert hccn.parse_speed(text).value == 200000
        assert hccn.parse_ip(text).value
