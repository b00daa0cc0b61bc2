"""libdcmi through ctypes, against a small library that is compiled here."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunan.ascend.probes.npu import NpuDevice
from tunan.ascend.probes.npus import look_at_npus, read_dcmi
from tunan.ascend.probes.sight import this_machine

SOURCE = Path(__file__).with_name("fake_dcmi.c")


def build(folder: Path, *options: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    assert compiler, "a C compiler is needed, as for the kernels"
    library = folder / "usr/local/dcmi/libdcmi.so"
    library.parent.mkdir(parents=True)
    language = ("-x", "c")
    command = [compiler, *language, "-shared", "-fPIC", *options, "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return library


def ask(library: Path) -> str:
    sight = this_machine(environment=dict(os.environ))
    return sight.run("python", "-m", "tunan.ascend.probes.dcmi", str(library)).output


def test_numbers_come_from_the_library(tmp_path: Path) -> None:
    report = read_dcmi(ask(build(tmp_path))).value
    assert report
    assert report.driver == "25.5.1"
    assert report.dual_die is False
    assert report.devices[0] == NpuDevice(
        npu=0,
        chip=0,
        name="910B3",
        health="OK",
        power_w=98.7,
        temperature_c=42.0,
        bus="0000:C1:00.0",
        aicore_percent=55,
        ddr_used_mb=0,
        ddr_total_mb=0,
        hbm_used_mb=3000,
        hbm_total_mb=65536,
        hugepages_used=2,
        hugepages_total=10,
        ecc_single_bit=5,
        ecc_double_bit=0,
    )
    second = report.devices[1]
    assert (second.npu, second.health, second.power_w, second.ecc_double_bit) == (
        4,
        "Alarm",
        None,
        1,
    )
    (process,) = report.processes_of(report.devices[0]) or ()
    assert (process.pid, process.memory_mb) == (4321, 7)
    assert report.processes_of(second) == ()


def test_a_library_that_does_not_start_says_its_code(tmp_path: Path) -> None:
    probe = read_dcmi(ask(build(tmp_path, "-DINIT_CODE=-8005")))
    assert (probe.value, probe.error) == (None, "dcmi_init failed with -8005")


def test_a_library_that_ends_its_process_is_no_answer(tmp_path: Path) -> None:
    library = build(tmp_path, "-DINIT_CODE=*(volatile int *)0")
    assert read_dcmi(ask(library)).error == "libdcmi gave no answer"


def test_what_is_no_library_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "libdcmi.so").write_text("no library")
    assert "cannot be loaded" in (read_dcmi(ask(tmp_path / "libdcmi.so")).error or "")


def test_npu_smi_is_asked_where_the_library_is_broken(tmp_path: Path) -> None:
    (tmp_path / "usr/local/dcmi").mkdir(parents=True)
    (tmp_path / "usr/local/dcmi/libdcmi.so").write_text("no library")
    probe = look_at_npus(this_machine(tmp_path, {"PATH": ""}))
    assert (probe.source, probe.error) == ("npu-smi info", "npu-smi is not installed")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"devices": [{}]}', '{"devices": []}', "[" * 5000]
)
def test_an_answer_that_is_none_is_one_line(text: str) -> None:
    assert read_dcmi(text).value is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["devices", "npu", "chip", "name", "processes", "pid", "power_w", "driver"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_answer_gives_a_result_or_one_line(answer: object) -> None:
    import json

    probe = read_dcmi(json.dumps(answer))
    assert (probe.value is None) == (probe.error is not None)
