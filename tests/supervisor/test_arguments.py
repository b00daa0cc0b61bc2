"""vLLM's command line."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.supervisor.machines import laptop
from tunan.config import Deployment, deployment_from
from tunan.supervisor.arguments import engine_arguments
from tunan.supervisor.model_size import ModelSize

SIZE = ModelSize(weights=1 << 28, kv_bytes_per_token=1024, max_len=2048, has_manifest=False)
CONVERTED = ModelSize(weights=1 << 28, kv_bytes_per_token=1024, max_len=2048, has_manifest=True)
SOCKET = Path("/run/engine.sock")


def arguments(size: ModelSize = SIZE, **values: object) -> list[str]:
    deployment: Deployment = deployment_from({"model": {"path": "/m/name"}, **values}, "test")
    return engine_arguments(laptop(), deployment, size, SOCKET)


def test_defaults_are_few() -> None:
    assert arguments() == [
        "--model=/m/name",
        "--served-model-name=name",
        "--uds=/run/engine.sock",
        "--disable-uvicorn-access-log",
        f"--kv-cache-memory-bytes={8 * (2048 + 128) * 1024}",
        "--enforce-eager",
    ]


def test_a_converted_checkpoint_is_loaded_by_tunan() -> None:
    assert "--load-format=tunan" in arguments(CONVERTED)
    assert not [a for a in arguments() if a.startswith("--load-format")]


def test_what_the_deployment_sets_becomes_vllms_flags() -> None:
    given = arguments(
        model={"path": "/m", "max_model_len": 512, "dtype": "float32", "served_model_name": "x"},
        parallel={"tensor": 2},
        scheduler={"policy": "priority", "max_num_seqs": 4, "max_num_batched_tokens": 256},
        memory={"kv_cache_gib": 1},
    )
    for flag in (
        "--served-model-name=x",
        "--max-model-len=512",
        "--dtype=float32",
        "--tensor-parallel-size=2",
        "--max-num-seqs=4",
        "--max-num-batched-tokens=256",
        "--scheduling-policy=priority",
        f"--kv-cache-memory-bytes={1 << 30}",
    ):
        assert flag in given


@pytest.mark.parametrize(("key", "name"), [("fp8", "fp8"), ("int8", "int8_per_token_head")])
def test_the_type_of_the_kv_cache_is_handed_over_by_vllms_name(key: str, name: str) -> None:
    assert f"--kv-cache-dtype={name}" in arguments(memory={"kv_cache": key})
    assert not any(flag.startswith("--kv-cache-dtype") for flag in arguments())


@pytest.mark.parametrize(("wish", "eager"), [(None, True), (True, True), (False, False)])
def test_the_model_is_compiled_only_if_asked_for(wish: bool | None, eager: bool) -> None:
    assert ("--enforce-eager" in arguments(model={"path": "/m", "enforce_eager": wish})) is eager


def test_pipeline_stages_are_traced_because_eager_mode_crashes() -> None:
    given = arguments(parallel={"pipeline": 2})
    assert "--enforce-eager" not in given
    assert '--compilation-config={"mode":2,"backend":"eager"}' in given


@pytest.mark.parametrize(("dtype", "said"), [("bfloat16", False), ("float16", True)])
def test_latent_attention_in_another_dtype_takes_the_kernel_of_all(dtype: str, said: bool) -> None:
    latent = replace(SIZE, latent_attention=True, dtype=dtype)
    assert ("--attention-backend=CPU_MLA" in arguments(latent)) == said


def test_an_int8_cache_of_latents_takes_the_kernel_that_has_one() -> None:
    latent = replace(SIZE, latent_attention=True, dtype="bfloat16")
    given = arguments(latent, memory={"kv_cache": "int8"})
    assert "--attention-backend=CPU_MLA" in given
    assert "--attention-backend=CPU_MLA" not in arguments(memory={"kv_cache": "int8"})


def test_further_arguments_come_last() -> None:
    assert arguments(engine_arguments=["--seed", "1"])[-2:] == ["--seed", "1"]
