"""The environment of the engine's processes."""

from pathlib import Path

import pytest

from tests.supervisor.machines import container, kunpeng, laptop, machine
from tunan.config import Deployment, deployment_from
from tunan.supervisor.directories import Directories
from tunan.supervisor.environment import engine_environment, with_users_choice
from tunan.supervisor.machine import Cpu

DIRECTORIES = Directories(cache=Path("/cache"), state=Path("/state"))


def deployment(**values: object) -> Deployment:
    return deployment_from({"model": {"path": "/m"}, **values}, "test")


def test_a_laptop_uses_all_cores_with_intels_openmp_and_tcmalloc() -> None:
    environment = engine_environment(laptop(), deployment(), DIRECTORIES)
    assert environment["OMP_NUM_THREADS"] == "4"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    assert environment["TUNAN_ENGINE_CPUS"] == "0-3"
    assert environment["LD_PRELOAD"] == ("/usr/lib/libtcmalloc_minimal.so.4:/venv/lib/libiomp5.so")
    assert environment["KMP_AFFINITY"] == "none"


def test_nothing_is_fetched_and_nothing_is_reported_home() -> None:
    environment = engine_environment(laptop(), deployment(), DIRECTORIES)
    wanted = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
    assert wanted.items() <= environment.items()


@pytest.mark.parametrize(("eager", "disabled"), [(None, True), (True, True), (False, False)])
def test_an_eager_engine_compiles_nothing_at_the_first_request_that_wants_it(
    eager: bool | None, disabled: bool
) -> None:
    model = {"path": "/m", "enforce_eager": eager}
    environment = engine_environment(laptop(), deployment(model=model), DIRECTORIES)
    assert ("TORCH_COMPILE_DISABLE" in environment) is disabled


def test_compile_caches_last() -> None:
    environment = engine_environment(laptop(), deployment(), DIRECTORIES)
    assert environment["VLLM_CACHE_ROOT"] == "/cache/vllm"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/cache/inductor"
    assert environment["VLLM_USE_AOT_COMPILE"] == "0"


def test_each_rank_of_a_kunpeng_is_bound_to_its_node_by_vllm() -> None:
    environment = engine_environment(kunpeng(), deployment(parallel={"tensor": 4}), DIRECTORIES)
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-31|32-63|64-95|96-127"
    assert environment["OMP_NUM_THREADS"] == "32"
    assert "TUNAN_ENGINE_CPUS" not in environment


def test_gnu_openmp_gets_no_settings_of_intels() -> None:
    environment = engine_environment(kunpeng(), deployment(), DIRECTORIES)
    assert not [name for name in environment if name.startswith("KMP")]
    assert environment["LD_PRELOAD"].endswith("libgomp.so.1")


def test_a_quota_limits_the_threads() -> None:
    environment = engine_environment(container(2.0), deployment(), DIRECTORIES)
    assert environment["OMP_NUM_THREADS"] == "2"


def test_an_uneven_layer_partition_is_told_to_vllm() -> None:
    parallel = {"pipeline": 2, "layer_partition": [3, 5]}
    environment = engine_environment(laptop(), deployment(parallel=parallel), DIRECTORIES)
    assert environment["VLLM_PP_LAYER_PARTITION"] == "3,5"
    assert "VLLM_PP_LAYER_PARTITION" not in engine_environment(
        laptop(), deployment(parallel={"pipeline": 2}), DIRECTORIES
    )


def test_without_libraries_nothing_is_preloaded() -> None:
    bare = machine([Cpu(0, 0, 0)], memory=4, openmp=None)
    environment = engine_environment(bare, deployment(), DIRECTORIES)
    assert environment["LD_PRELOAD"] == "/usr/lib/libtcmalloc_minimal.so.4"


@pytest.mark.parametrize(
    ("name", "theirs", "result"),
    [
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind", "nobind"),
        ("OMP_NUM_THREADS", "1", "4"),
        ("LD_PRELOAD", "/x.so", "/ours.so:/x.so"),
        ("UNRELATED", "kept", "kept"),
    ],
)
def test_what_the_user_exports_wins_except_thread_counts(
    name: str, theirs: str, result: str
) -> None:
    ours = {
        "VLLM_CPU_OMP_THREADS_BIND": "0-3",
        "OMP_NUM_THREADS": "4",
        "LD_PRELOAD": "/ours.so",
    }
    assert with_users_choice(ours, {name: theirs})[name] == result
