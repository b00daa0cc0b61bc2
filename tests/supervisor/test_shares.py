"""What each replica gets of a machine."""

import pytest

from tests.supervisor.machines import GIB, container, kunpeng, laptop, smt_xeon
from tunan.config import Deployment, Replicas, deployment_from
from tunan.errors import UsageError
from tunan.supervisor.machine import Machine
from tunan.supervisor.shares import device_shares, machine_shares


def cpus(machine: Machine) -> list[int]:
    return [cpu.id for cpu in machine.cpus]


def deployment(**values: object) -> Deployment:
    return deployment_from({"model": {"path": "/m"}, **values}, "test")


def test_one_replica_has_the_whole_machine() -> None:
    assert machine_shares(laptop(), Replicas()) == (laptop(),)


def test_cores_and_memory_are_divided() -> None:
    first, second = machine_shares(laptop(), Replicas(count=2))
    assert (cpus(first), cpus(second)) == ([0, 1], [2, 3])
    for share in (first, second):
        assert (share.memory_free, share.memory_total) == (8 * GIB, 8 * GIB)
        assert share.node_free == {0: 8 * GIB}
        assert share.replicas == 2


def test_whole_nodes_are_given_where_there_are_enough() -> None:
    shares = machine_shares(kunpeng(), Replicas(count=3))
    assert [share.nodes for share in shares] == [(0,), (1,), (2, 3)]
    assert shares[0].node_free == {0: 128 * GIB}
    assert shares[2].node_free == {2: 128 * GIB, 3: 128 * GIB}


def test_more_replicas_than_nodes_divide_the_cores() -> None:
    shares = machine_shares(kunpeng(), Replicas(count=8))
    assert [len(share.cpus) for share in shares] == [16] * 8
    assert shares[1].node_free == {0: 64 * GIB}


def test_hyper_threads_stay_with_their_core() -> None:
    first, second = machine_shares(smt_xeon(), Replicas(count=2))
    assert cpus(first) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert cpus(second) == [4, 5, 6, 7, 12, 13, 14, 15]


def test_a_standby_has_the_cores_of_an_active_replica_and_memory_of_its_own() -> None:
    active, standby = machine_shares(laptop(), Replicas(count=1, standby=1))
    assert cpus(active) == cpus(standby) == [0, 1, 2, 3]
    assert active.memory_free == standby.memory_free == 8 * GIB
    assert active.node_free == standby.node_free == {0: 8 * GIB}


def test_a_containers_quota_is_divided() -> None:
    shares = machine_shares(container(quota=4), Replicas(count=2))
    assert [share.cpu_quota for share in shares] == [2, 2]


@pytest.mark.parametrize(("machine", "usable"), [(laptop(), 4), (container(quota=2.5), 2)])
def test_more_active_replicas_than_cores_are_refused(machine: Machine, usable: int) -> None:
    with pytest.raises(UsageError, match=f"5 active replicas need a core each, {usable} may be"):
        machine_shares(machine, Replicas(count=5))


def test_devices_are_divided_standbys_included() -> None:
    shares = device_shares(deployment(replicas={"count": 1, "standby": 1}, parallel={"tensor": 2}))
    assert [share.parallel.devices for share in shares] == [(0, 1), (2, 3)]


def test_named_devices_are_divided_in_their_order() -> None:
    parallel = {"tensor": 2, "devices": [4, 5, 6, 7]}
    shares = device_shares(deployment(replicas={"count": 2}, parallel=parallel))
    assert [share.parallel.devices for share in shares] == [(4, 5), (6, 7)]


def test_too_few_named_devices_are_refused() -> None:
    parallel = {"tensor": 2, "devices": [0, 1, 2]}
    with pytest.raises(UsageError, match="names 3 devices, 2 replicas of 2 need 4"):
        device_shares(deployment(replicas={"count": 2}, parallel=parallel))
