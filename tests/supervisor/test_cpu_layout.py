"""Which CPUs each rank gets, on machines of all kinds."""

import pytest

from tests.supervisor.machines import container, kunpeng, laptop, machine, smt_xeon
from tunan.supervisor.cpu_layout import as_list, cpus_of_ranks
from tunan.supervisor.machine import Cpu


def test_a_laptop_uses_every_core() -> None:
    assert cpus_of_ranks(laptop(), 1) == ((0, 1, 2, 3),)


def test_one_thread_a_physical_core() -> None:
    assert cpus_of_ranks(smt_xeon(), 1) == (tuple(range(8)),)


def test_an_affinity_mask_that_leaves_only_the_second_siblings_is_kept() -> None:
    masked = machine([Cpu(i, i % 8, 0) for i in range(8, 12)], memory=8)
    assert cpus_of_ranks(masked, 1) == ((8, 9, 10, 11),)


def test_a_single_rank_stays_on_one_node_where_its_memory_is() -> None:
    assert cpus_of_ranks(kunpeng(), 1) == (tuple(range(32)),)


def test_four_ranks_take_one_kunpeng_node_each() -> None:
    ranks = cpus_of_ranks(kunpeng(), 4)
    assert [as_list(cpus) for cpus in ranks] == ["0-31", "32-63", "64-95", "96-127"]


def test_the_nodes_with_most_cores_are_taken_first() -> None:
    uneven = machine([Cpu(0, 0, 0), *(Cpu(i, i, 1) for i in range(1, 5))], memory=8)
    assert cpus_of_ranks(uneven, 1) == ((1, 2, 3, 4),)


def test_more_ranks_than_nodes_split_the_cores() -> None:
    assert cpus_of_ranks(laptop(), 2) == ((0, 1), (2, 3))


def test_more_ranks_than_cores_share_them() -> None:
    assert cpus_of_ranks(machine([Cpu(0, 0, 0)], memory=4), 2) == ((0,), (0,))


@pytest.mark.parametrize(("quota", "threads"), [(4.0, 4), (2.5, 2), (0.5, 1), (64.0, 16)])
def test_a_cpu_quota_limits_the_threads(quota: float, threads: int) -> None:
    assert len(cpus_of_ranks(container(quota), 1)[0]) == threads


@pytest.mark.parametrize(
    ("cpus", "text"), [((0,), "0"), ((0, 1, 2), "0-2"), ((0, 2, 3, 7), "0,2-3,7")]
)
def test_lists_are_written_as_the_kernel_does(cpus: tuple[int, ...], text: str) -> None:
    assert as_list(cpus) == text
