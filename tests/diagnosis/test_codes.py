"""ACL's statuses and CANN's codes."""

import pytest

from tunan.diagnosis.codes import codes_in, decode


@pytest.mark.parametrize(
    "text",
    [
        "error code is 507048",
        "error code:507048",
        "aclInit(nullptr) failed : 507048",
        "rtStreamSynchronize ret=507048, stream 3",
        "retCode: 507048",
    ],
)
def test_a_status_is_taken_where_the_line_says_that_it_is_one(text: str) -> None:
    assert list(codes_in(text)) == ["507048"]


@pytest.mark.parametrize(
    "text", ["pid 507048", "error code is 5070481", "took 507048 us", "errors in 507048 blocks"]
)
def test_another_number_is_no_status(text: str) -> None:
    assert list(codes_in(text)) == []


def test_codes_of_cann_stand_alone() -> None:
    assert list(codes_in("EI0006: [PID: 7] (EZ9999) and XEI0006 or EI00067")) == [
        "EI0006",
        "EZ9999",
    ]


def test_a_code_that_is_not_listed_is_given_to_its_module() -> None:
    code = decode("EJ0077")
    assert code is not None
    assert "HCCP" in code.meaning.en
    assert decode("EL9888") is not None
    assert "inner" in decode("EL9888").meaning.en  # type: ignore[union-attr]


@pytest.mark.parametrize("code", ["123456", "EQ0001"])
def test_nothing_is_made_up_for_a_code_of_nobody(code: str) -> None:
    assert decode(code) is None
