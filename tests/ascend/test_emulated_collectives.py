"""Collectives between two processes on two emulated devices."""

from typing import Any

import pytest

from tests.ascend.emulated import PROGRAMS, run_emulated

pytestmark = pytest.mark.ascend


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory: Any) -> Any:
    """What each rank got, by the name of the exchange."""
    return run_emulated(
        [str(PROGRAMS / "collectives.py"), str(unused_tcp_port_factory())],
        tmp_path_factory.mktemp("collectives"),
        devices=2,
        seconds=280,
    ).result


def test_all_to_all_with_uneven_parts(ranks: Any) -> None:
    assert [rank["uneven_all_to_all"] for rank in ranks] == [[0, 10, 11], [1, 2, 3]]


def test_sends_and_receives_in_one_batch(ranks: Any) -> None:
    found = [rank["batched_point_to_point"] for rank in ranks]
    assert found == [list(range(10, 18)), list(range(8))]


def test_reductions(ranks: Any) -> None:
    assert [rank["reduced"] for rank in ranks] == [[3, 2, 3], [3, 2, 6]]


def test_gathering_and_broadcasting(ranks: Any) -> None:
    assert [rank["gathered"] for rank in ranks] == [[0, 0, 1, 1, 1]] * 2
