"""What is started on this machine, by target."""

from pathlib import Path

import pytest

from tests.supervisor.machines import laptop
from tunan.ascend.emulated import EmulatedDevices
from tunan.config import deployment_from
from tunan.errors import UsageError
from tunan.supervisor.directories import Directories
from tunan.supervisor.launch import Launch, launchers_of, plan_launch
from tunan.supervisor.model_size import ModelSize

SIZE = ModelSize(weights=1 << 20, kv_bytes_per_token=1024, max_len=512, has_manifest=True)
DIRECTORIES = Directories(cache=Path("/cache"), state=Path("/state"))
EMULATED = EmulatedDevices(2, "Ascend910B3", memory=4 << 30)


def launch(target: str, emulated: EmulatedDevices | None = None, **values: object) -> Launch:
    deployment = deployment_from({"model": {"path": "/m/name"}, **values}, "test")
    return plan_launch(deployment, target, SIZE, Path("/run/x"), DIRECTORIES, emulated)


def test_every_target_listens_on_the_private_socket_for_the_front_door() -> None:
    for planned in (launch("cpu"), launch("ascend910b3")):
        assert "--uds=/run/x/engine.sock" in planned.arguments
        assert "--load-format=tunan" in planned.arguments
        assert planned.environment["TMPDIR"] == "/run/x"
        assert planned.environment["TUNAN_PROGRESS_SOCKET"] == "/run/x/progress.sock"


def test_an_npu_gets_vllm_ascends_settings_and_none_of_the_cpus() -> None:
    planned = launch("ascend910b3", parallel={"tensor": 2, "devices": [2, 3]})
    assert planned.environment["ASCEND_RT_VISIBLE_DEVICES"] == "2,3"
    assert "ascend" in planned.environment["VLLM_PLUGINS"].split(",")
    assert "VLLM_CPU_OMP_THREADS_BIND" not in planned.environment
    assert "--tensor-parallel-size=2" in planned.arguments
    assert not [a for a in planned.arguments if a.startswith(("--host", "--port"))]
    assert planned.device == "ascend910b3"


def test_compile_caches_of_an_npu_lie_apart_from_the_cpus() -> None:
    cpu, npu = launch("cpu").environment, launch("ascend910b3").environment
    for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR"):
        assert cpu[name] != npu[name]


@pytest.mark.parametrize("target", ["cpu", "ascend910b3"])
def test_an_engine_starts_in_a_pipeline_that_sets_ci_as_it_does_elsewhere(target: str) -> None:
    assert launch(target).environment["TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING"] == "0"


def test_an_emulated_device_is_called_one_and_binds_no_cpus() -> None:
    planned = launch("ascend910b3", EMULATED)
    assert planned.device == "2 emulated Ascend910B3"
    assert '--additional-config={"enable_cpu_binding": false}' in planned.arguments
    assert '--additional-config={"enable_cpu_binding": true}' in launch("ascend910b3").arguments


def test_the_size_of_the_kv_cache_is_handed_over() -> None:
    assert (
        "--kv-cache-memory-bytes=1073741824"
        in launch("ascend910b3", memory={"kv_cache_gib": 1}).arguments
    )


def test_a_cache_larger_than_an_emulated_device_is_refused() -> None:
    launch("ascend910b3", EMULATED, memory={"kv_cache_gib": 4}, parallel={"tensor": 2})
    with pytest.raises(UsageError, match=r"5 GiB is more than the 4\.0 GiB .* emulated device has"):
        launch("ascend910b3", EMULATED, memory={"kv_cache_gib": 5})


def test_an_npu_runs_graphs_unless_told_not_to() -> None:
    assert launch("ascend910b3").compiles
    assert not launch("ascend910b3", model={"path": "/m", "enforce_eager": True}).compiles


def replicas(target: str, **values: object) -> tuple[Launch, ...]:
    deployment = deployment_from({"model": {"path": "/m/name"}, **values}, "test")
    launchers = launchers_of(deployment, target, SIZE, Path("/run/x"), DIRECTORIES)
    return tuple(launch(share) for share, launch in launchers)


def test_each_replica_has_sockets_and_devices_of_its_own() -> None:
    first, second = replicas("ascend910b3", replicas={"count": 1, "standby": 1})
    assert "--uds=/run/x/0/engine.sock" in first.arguments
    assert "--uds=/run/x/1/engine.sock" in second.arguments
    assert second.environment["TMPDIR"] == str(second.directory) == "/run/x/1"
    assert second.environment["ASCEND_RT_VISIBLE_DEVICES"] == "1"
    assert (first.devices, second.devices) == ((0,), (1,))


def test_replicas_on_a_cpu_hold_no_devices_and_compute_on_cores_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tunan.supervisor.launch.look", laptop)
    first, second = replicas("cpu", replicas={"count": 2})
    bound = [launch.environment["VLLM_CPU_OMP_THREADS_BIND"] for launch in (first, second)]
    assert bound == ["0-1", "2-3"]
    assert first.devices == second.devices == ()


def test_where_every_engine_is_elsewhere_none_is_started() -> None:
    assert replicas("cpu", replicas=[{"url": "http://host:8000"}]) == ()
