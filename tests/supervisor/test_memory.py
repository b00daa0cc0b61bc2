"""The size of the KV cache."""

import dataclasses

import pytest

from tests.supervisor.machines import GIB, kunpeng, laptop
from tunan.config import Deployment, deployment_from
from tunan.errors import OutsideError, UsageError
from tunan.supervisor.machine import Machine
from tunan.supervisor.memory import kv_cache_bytes
from tunan.supervisor.model_size import ModelSize

SIZE = ModelSize(weights=2 * GIB, kv_bytes_per_token=GIB // 4096, max_len=4096, has_manifest=True)


def deployment(**values: object) -> Deployment:
    return deployment_from({"model": {"path": "/m"}, **values}, "test")


def with_free(machine: Machine, gib: float) -> Machine:
    free = int(gib * GIB)
    return dataclasses.replace(
        machine, memory_free=free, node_free=dict.fromkeys(machine.node_free, free)
    )


def test_eight_full_sequences_where_there_is_room() -> None:
    assert kv_cache_bytes(with_free(laptop(), 100), deployment(), SIZE) == 8 * (4096 + 128) * (
        GIB // 4096
    )


def test_a_partly_used_machine_gives_what_is_left_after_the_weights() -> None:
    size = kv_cache_bytes(with_free(laptop(), 10), deployment(), SIZE)
    assert size == int(0.9 * 10 * GIB) - int(0.75 * GIB) - 4 * GIB


def test_when_memory_is_tight_the_weights_are_counted_once() -> None:
    size = kv_cache_bytes(with_free(laptop(), 5), deployment(), SIZE)
    assert size >= GIB


def test_too_little_memory_says_which_length_fits() -> None:
    with pytest.raises(OutsideError, match=r"set model\.max_model_len to \d+ or less") as error:
        kv_cache_bytes(with_free(laptop(), 4), deployment(), SIZE)
    fitting = int(str(error.value).split("to ")[1].split()[0])
    shorter = deployment(model={"path": "/m", "max_model_len": fitting})
    assert kv_cache_bytes(with_free(laptop(), 4), shorter, SIZE) > 0


def test_no_memory_at_all_says_so() -> None:
    with pytest.raises(OutsideError, match="free memory, or raise"):
        kv_cache_bytes(with_free(laptop(), 1), deployment(), SIZE)


def test_an_explicit_size_is_taken_as_it_is() -> None:
    assert kv_cache_bytes(laptop(), deployment(memory={"kv_cache_gib": 0.5}), SIZE) == GIB // 2


@pytest.mark.parametrize(
    ("gib", "ranks", "message"),
    [(17, 1, "17 GiB is more than the 16.0 GiB"), (9, 2, "9 GiB for each of 2 ranks is more")],
)
def test_a_cache_larger_than_the_machine_is_refused(gib: int, ranks: int, message: str) -> None:
    wanted = deployment(memory={"kv_cache_gib": gib}, parallel={"tensor": ranks})
    with pytest.raises(UsageError, match=message):
        kv_cache_bytes(laptop(), wanted, SIZE)


def test_ranks_share_the_cache_and_stay_within_their_node() -> None:
    crowded = dataclasses.replace(
        kunpeng(), node_free={0: 3 * GIB, **dict.fromkeys((1, 2, 3), GIB * 100)}
    )
    size = kv_cache_bytes(crowded, deployment(parallel={"tensor": 4}), SIZE)
    assert size == int(0.9 * 3 * GIB) - int(0.75 * GIB) - GIB


def test_a_replica_that_has_only_a_share_says_so() -> None:
    share = dataclasses.replace(with_free(laptop(), 4), memory_total=4 * GIB, replicas=2)
    with pytest.raises(OutsideError, match="each of 2 replicas has an even share"):
        kv_cache_bytes(share, deployment(), SIZE)
    with pytest.raises(
        UsageError, match=r"more than the 4\.0 GiB of memory that each of 2 replicas"
    ):
        kv_cache_bytes(share, deployment(memory={"kv_cache_gib": 5}), SIZE)
