"""Remedies between two starts: by fake engines that want less memory, and one by one."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.fleets import FakeFleet, running, use_fake_engines
from tunan.config import Deployment, deployment_from
from tunan.errors import OutsideError
from tunan.supervisor.healing import Healing
from tunan.supervisor.launch import Launch

OUT_OF_MEMORY = "RuntimeError: NPU out of memory."
BUFFER = "[ERROR] NEEDED_HCCL_BUFFSIZE(a * 2) = 731MB, HCCL_BUFFSIZE=200MB."
TAKEN = (
    "ValueError: Free memory on device npu:0 (39.00/60.00 GiB) on startup is less than desired GPU "
    "memory utilization (0.9, 54.00 GiB)."
)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a path that is short enough for sockets."""
    use_fake_engines(monkeypatch)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


async def test_a_first_start_that_a_remedy_mends_is_tried_again_with_it(folder: Path) -> None:
    fleet = FakeFleet(folder)
    fleet.behave(0, f"crowd {OUT_OF_MEMORY}")
    async with running(fleet) as run:
        await fleet.until(True)
        (remedy,) = fleet.report.named("remedy")
        assert (
            remedy["text"] == "tunan: remedy for npu-out-of-memory: memory.utilization 0.9 -> 0.85"
        )
        assert (remedy["remedy"], remedy["error"]) == ("lower utilization", "npu-out-of-memory")
        assert "--gpu-memory-utilization=0.85" in fleet.lives[0].plan.launch.arguments
        assert fleet.lives[0].starts == 2
        # It stays so at later starts.
        pid = fleet.lives[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await fleet.until(False)
        await fleet.until(True)
        assert len(fleet.report.named("remedy")) == 1
        assert not run.done()


async def test_each_remedy_is_tried_once_and_then_the_service_ends(folder: Path) -> None:
    fleet = FakeFleet(folder)
    fleet.behave(0, f"fail {OUT_OF_MEMORY}")
    with pytest.raises(OutsideError, match=r"NPU out of memory.*it failed 2 times in a row"):
        await asyncio.wait_for(fleet.run(), 120)
    assert len(fleet.report.named("remedy")) == 1
    assert fleet.lives[0].starts == 2


@pytest.mark.parametrize("restart", [{"heal": False}, {"failures": 1}], ids=str)
async def test_where_it_is_switched_off_a_first_start_that_fails_ends_the_service(
    folder: Path, restart: dict[str, object]
) -> None:
    fleet = FakeFleet(folder, restart=restart)
    fleet.behave(0, f"crowd {OUT_OF_MEMORY}")
    with pytest.raises(OutsideError, match="NPU out of memory"):
        await asyncio.wait_for(fleet.run(), 120)
    assert fleet.report.named("remedy") == []
    assert fleet.lives[0].starts == 1


async def test_an_error_that_a_killed_engine_had_survived_changes_nothing(folder: Path) -> None:
    fleet = FakeFleet(folder)
    async with running(fleet):
        await fleet.until(True)
        with fleet.lives[0].plan.log.open("a") as log:
            log.write(f"{OUT_OF_MEMORY}\n")
        pid = fleet.lives[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await fleet.until_event("restarting")
        await fleet.until(True)
        assert fleet.report.named("remedy") == []


def deployment(**values: Any) -> Deployment:
    return deployment_from({"model": {"path": "/m", "max_model_len": 8192}, **values}, "test")


def launch(deployment: Deployment) -> Launch:
    memory, scheduler = deployment.memory, deployment.scheduler
    arguments = (
        f"--gpu-memory-utilization={memory.utilization}",
        f"--max-num-batched-tokens={scheduler.max_num_batched_tokens}",
        f"--max-model-len={deployment.model.max_model_len}",
    )
    return Launch(arguments, {"OURS": "1"}, False, "a fake device", Path("/run/x"), (0,))


def remedies(tmp_path: Path, text: str, deployment: Deployment) -> list[str]:
    """All that are applied one after the other while the log says the same."""
    log = tmp_path / "engine.log"
    log.write_text(f"{text}\n")
    healing, now, whats = Healing(launch), launch(deployment), []
    while healed := healing.after(log, deployment, now):
        deployment, now = healed.remedy.deployment, healed.launch
        whats.append(healed.remedy.what)
    return whats


def test_one_remedy_follows_another(tmp_path: Path) -> None:
    assert remedies(tmp_path, OUT_OF_MEMORY, deployment()) == [
        "memory.utilization 0.9 -> 0.85",
        "scheduler.max_num_batched_tokens 2048 -> 1024",
        "model.max_model_len 8192 -> 4096",
    ]


@pytest.mark.parametrize(
    ("values", "left_out"),
    [
        ({"engine_arguments": ["--gpu_memory_utilization=0.95"]}, "memory.utilization"),
        ({"engine_arguments": ["--max-num-batched-tokens", "4096"]}, "max_num_batched_tokens"),
        ({"memory": {"kv_cache_gib": 2}}, "memory.utilization"),
        ({"replicas": {"count": 2}}, "max_model_len"),
    ],
    ids=str,
)
def test_what_the_user_or_another_replica_relies_on_stays(
    tmp_path: Path, values: dict[str, object], left_out: str
) -> None:
    whats = remedies(tmp_path, OUT_OF_MEMORY, deployment(**values))
    assert len(whats) == 2
    assert not any(left_out in what for what in whats)


def test_a_variable_is_added_and_stays(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    healing = Healing(launch)
    log.write_text(f"{BUFFER}\n")
    first = healing.after(log, deployment(), launch(deployment()))
    assert first is not None
    assert first.launch.environment == {"OURS": "1", "HCCL_BUFFSIZE": "731"}
    log.write_text(f"{OUT_OF_MEMORY}\n")
    second = healing.after(log, first.remedy.deployment, first.launch)
    assert second is not None
    assert second.launch.environment == first.launch.environment


def test_an_allocator_that_is_set_already_is_passed_over_for_what_changes_something(
    tmp_path: Path,
) -> None:
    name, value = "PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True"
    log = tmp_path / "engine.log"
    log.write_text(
        "RuntimeError: NPU out of memory. Tried to allocate 4.00 GiB (NPU 0; 60.00 GiB total "
        "capacity; 40.00 GiB already allocated; 40.00 GiB current active; 1.00 GiB free; 58.00 GiB "
        "reserved in total by PyTorch)\n"
    )
    first = Healing(launch).after(log, deployment(), launch(deployment()))
    assert first is not None
    assert first.remedy.what == f"{name}={value}"
    assert first.launch.environment == {"OURS": "1", name: value}

    def grows(of: Deployment) -> Launch:
        return replace(launch(of), environment={"OURS": "1", name: value})

    second = Healing(grows).after(log, deployment(), grows(deployment()))
    assert second is not None
    assert "memory.utilization" in second.remedy.what


def test_a_variable_that_the_user_exported_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_BUFFSIZE", "200")
    assert remedies(tmp_path, BUFFER, deployment()) == []


def test_a_device_that_is_taken_is_waited_for_first(tmp_path: Path) -> None:
    assert remedies(tmp_path, TAKEN, deployment()) == [
        "waiting up to 60 s for another process to release the device",
        "memory.utilization 0.9 -> 0.65",
    ]


def test_what_is_not_known_or_cannot_be_read_or_started_changes_nothing(tmp_path: Path) -> None:
    def impossible(_: Deployment) -> Launch:
        raise OutsideError("not enough memory")

    assert remedies(tmp_path, "KeyError: 1", deployment()) == []
    log = tmp_path / "engine.log"
    assert Healing(launch).after(tmp_path / "none", deployment(), launch(deployment())) is None
    log.write_text(f"{OUT_OF_MEMORY}\n")
    assert Healing(impossible).after(log, deployment(), launch(deployment())) is None
