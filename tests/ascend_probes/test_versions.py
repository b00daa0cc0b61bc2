"""Versions as Ascend writes them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunan.ascend.probes.versions import (
    Package,
    firmware_fits,
    is_at_least,
    is_within,
    parse_package,
    version_key,
)

ASCENDING = ["22.0.4", "23.0.rc2.3", "23.0.rc3", "23.0.0", "23.0.7", "24.1.rc1.b030", "24.1.rc1",
             "24.1.rc2", "24.1.0", "25.0.rc1.1", "25.5.1", "26.0.rc2"]  # fmt: skip


@pytest.mark.parametrize(("older", "newer"), list(itertools.pairwise(ASCENDING)))
def test_candidates_come_before_their_release(older: str, newer: str) -> None:
    assert version_key(older) < version_key(newer)
    assert is_at_least(newer, older)
    assert not is_at_least(older, newer)


def test_a_missing_last_part_is_zero() -> None:
    assert version_key("8.5") == version_key("8.5.0")


def test_a_highest_version_with_a_dot_at_its_end_is_all_that_begin_so() -> None:
    assert is_within("23.0.rc3", "23.0.rc3", "23.0.rc3.")
    assert is_within("23.0.rc3.2", "23.0.rc3", "23.0.rc3.")
    assert not is_within("23.0.rc31", "23.0.rc3", "23.0.rc3.")


def test_a_driver_s_file_tells_its_version_and_the_firmware_it_takes() -> None:
    text = "Version=25.5.1\nInnerversion=V1\ncompatible_version=[V1],[V2]\n"
    text += "compatible_version_fw=[7.0.0,7.8.99]\npackage_version=25.5.1\n"
    package = parse_package(text, "version.info").value
    assert package == Package("25.5.1", firmware_range=("7.0.0", "7.8.99"))


def test_a_toolkit_s_file_tells_architecture_and_place() -> None:
    text = "package_name=Ascend-cann-toolkit\nversion=9.1.0\narch=aarch64\npath=/usr/local/x\n"
    package = parse_package(text, "ascend_toolkit_install.info").value
    assert package == Package("9.1.0", architecture="aarch64", path="/usr/local/x")


@pytest.mark.parametrize(
    ("firmware", "fits"), [("7.1.0.7.220", True), ("7.3.0.1.231", False), ("6.4.12", False)]
)
def test_firmware_is_compared_with_the_driver_s_range(firmware: str, fits: bool) -> None:
    driver = Package("23.0.7", firmware_range=("7.0.0", "7.1.99"))
    assert firmware_fits(driver, Package(firmware)) is fits


def test_both_sides_have_to_agree() -> None:
    driver = Package("24.1.0", firmware_range=("7.0.0", "7.9.99"))
    firmware = Package("7.1.0", driver_ranges=(("23.0.rc3", "23.0.rc3."), ("23.0.0", "23.0.0.")))
    assert firmware_fits(driver, firmware) is False


def test_nothing_is_said_where_neither_names_a_range() -> None:
    assert firmware_fits(Package("25.0"), Package("7.1")) is None


@given(st.text() | st.text(alphabet="versionVERSION=[].,0123rc\n"))
def test_any_text_gives_a_package_or_one_line(text: str) -> None:
    probe = parse_package(text, "version.info")
    assert (probe.value is None) == (probe.error is not None)


@given(st.text(alphabet="0123456789.rcRCbT-"), st.text(alphabet="0123456789.rcRCbT-"))
def test_any_two_versions_can_be_compared(one: str, other: str) -> None:
    assert (version_key(one) <= version_key(other)) or (version_key(other) <= version_key(one))
