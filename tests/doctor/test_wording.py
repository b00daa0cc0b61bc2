"""Numbers in the texts of the checks."""

import pytest

from tunan.doctor.examining import counted as counted_findings
from tunan.doctor.finding import Finding
from tunan.doctor.wording import by_value, counted, devices, spans

FINE = Finding("system", "note", "ok", "Linux", "Linux", None)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [([], ""), ([3], "3"), ([1, 0], "0, 1"), ([0, 0, 1, 1, 2, 2], "0-2"), ([0, 2, 3, 4], "0, 2-4")],
)
def test_numbers_in_a_row_are_a_span_and_none_is_there_twice(numbers: list[int], told: str) -> None:
    assert spans(numbers) == told


def test_one_has_no_plural() -> None:
    assert (counted(1, "port"), counted(0, "port"), counted(2, "port")) == (
        "1 port",
        "0 ports",
        "2 ports",
    )
    assert (devices([4]), devices([4, 5])) == ("device 4", "devices 4, 5")
    assert counted_findings([FINE]) == "1 check, all well"
    assert counted_findings([FINE, FINE]) == "2 checks, all well"


def test_devices_that_tell_the_same_are_together() -> None:
    assert by_value({0: "A", 1: "B", 2: "A"}) == "devices 0, 2: A; device 1: B"
