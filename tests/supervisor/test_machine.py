"""Looking at a machine, on sysfs trees made for it."""

import os
from pathlib import Path

import pytest

from tunan.supervisor.machine import look, parse_list

KIB = 1024


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two nodes of two SMT cores: CPUs 0-1 and 2-3 with siblings 4-7."""
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-1,4-5\n")
    write(tmp_path, "sys/devices/system/node/node1/cpulist", "2-3,6-7\n")
    for cpu in range(8):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(tmp_path, f"{folder}/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}\n")
    for node, free in ((0, 100), (1, 200)):
        meminfo = (
            f"Node {node} MemTotal: 1000 kB\nNode {node} MemFree: {free} kB\n"
            f"Node {node} Active(file): 10 kB\nNode {node} Inactive(file): 20 kB\n"
            f"Node {node} SReclaimable: 5 kB\n"
        )
        write(tmp_path, f"sys/devices/system/node/node{node}/meminfo", meminfo)
    write(tmp_path, "proc/meminfo", "MemTotal: 2000 kB\nMemAvailable: 800 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/pod/one\n")
    return tmp_path


def test_cores_siblings_and_nodes_are_found(root: Path) -> None:
    machine = look(root, frozenset(range(8)))
    assert [(cpu.id, cpu.core, cpu.node) for cpu in machine.cpus] == [
        (0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 1),
        (4, 0, 0), (5, 1, 0), (6, 2, 1), (7, 3, 1),
    ]  # fmt: skip
    assert machine.nodes == (0, 1)


def test_only_allowed_cpus_count(root: Path) -> None:
    machine = look(root, frozenset({2, 6}))
    assert [cpu.id for cpu in machine.cpus] == [2, 6]
    assert machine.nodes == (1,)


def test_free_memory_is_counted_by_node_as_vllm_counts_it(root: Path) -> None:
    machine = look(root, frozenset(range(8)))
    assert machine.memory_free == 800 * KIB
    assert machine.node_free == {0: 135 * KIB, 1: 235 * KIB}


def test_the_tightest_cgroup_above_limits_memory_and_its_cache_counts_as_free(root: Path) -> None:
    write(root, "sys/fs/cgroup/pod/memory.max", str(500 * KIB))
    write(root, "sys/fs/cgroup/pod/memory.current", str(450 * KIB))
    write(root, "sys/fs/cgroup/pod/memory.stat", f"anon 1\ninactive_file {100 * KIB}\n")
    write(root, "sys/fs/cgroup/pod/one/memory.max", "max")
    machine = look(root, frozenset(range(8)))
    assert machine.memory_total == 500 * KIB
    assert machine.memory_free == 150 * KIB
    assert machine.node_free[1] == 150 * KIB


def test_the_smallest_cpu_quota_above_counts(root: Path) -> None:
    write(root, "sys/fs/cgroup/pod/cpu.max", "250000 100000\n")
    write(root, "sys/fs/cgroup/pod/one/cpu.max", "max 100000\n")
    assert look(root, frozenset({0})).cpu_quota == 2.5


def test_cgroup_v1_is_read_and_its_unlimited_numbers_are_none(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/x\n2:cpu,cpuacct:/x\n")
    write(root, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", str(9223372036854771712))
    write(root, "sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1")
    write(root, "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "300000")
    write(root, "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000")
    machine = look(root, frozenset({0}))
    assert machine.memory_free == 800 * KIB
    assert machine.cpu_quota == 3.0


def test_no_quota_is_none(root: Path) -> None:
    write(root, "proc/self/cgroup", "2:cpu:/x\n")
    write(root, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1")
    write(root, "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000")
    assert look(root, frozenset({0})).cpu_quota is None


def test_this_machine_has_cpus_and_memory() -> None:
    machine = look()
    assert {cpu.id for cpu in machine.cpus} == os.sched_getaffinity(0)
    assert 0 < machine.memory_free <= machine.memory_total


@pytest.mark.parametrize(("text", "numbers"), [("", []), ("3", [3]), ("0-2,7\n", [0, 1, 2, 7])])
def test_lists_are_read_as_the_kernel_writes_them(text: str, numbers: list[int]) -> None:
    assert parse_list(text) == numbers
