"""The commands for large models against the argument parser of vLLM 0.23, and their environment
against what reads it."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ascend.emulated import PROGRAMS, run_emulated
from tunan.ascend.recipe import NodeCommand, node_commands
from tunan.config import Deployment, deployment_from
from tunan.supervisor.arguments import common_arguments

pytestmark = pytest.mark.ascend

RECIPES: dict[str, dict[str, Any]] = {
    file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))
    for file in (Path(__file__).parents[2] / "deploy" / "recipes").glob("*.yaml")
} | {
    "eager-with-priorities": {
        "model": {"path": "/m/x", "enforce_eager": True},
        "scheduler": {"policy": "priority"},
    }
}
# Read by CANN's and HCCL's own libraries, which are not in this environment.
OF_CANN = {
    "HCCL_IF_IP",
    "HCCL_INTRA_PCIE_ENABLE",
    "HCCL_INTRA_ROCE_ENABLE",
    "HCCL_SOCKET_IFNAME",
}
READERS = ("vllm", "vllm_ascend", "torch_npu", "torch", "huggingface_hub")


def _deployment(name: str) -> Deployment:
    return deployment_from(RECIPES[name], name)


def _commands(name: str) -> tuple[NodeCommand, ...]:
    deployment = _deployment(name)
    return node_commands(deployment, "ascend910b3", tuple(common_arguments(deployment, False)))


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """What vLLM makes of each machine's arguments; one start of vLLM for all."""
    folder = tmp_path_factory.mktemp("flags")
    lists = [list(c.arguments[2:]) for name in RECIPES for c in _commands(name)]
    lists.append(["/m/x", "--no-such-flag"])
    file = folder / "arguments.json"
    file.write_text(json.dumps(lists))
    found = iter(run_emulated([str(PROGRAMS / "parse_flags.py"), str(file)], folder).result)
    return {name: [next(found) for _ in _commands(name)] for name in RECIPES} | {
        "wrong": list(found)
    }


@pytest.mark.parametrize("name", RECIPES)
def test_vllm_takes_every_flag(name: str, parsed: dict[str, list[dict[str, str]]]) -> None:
    for settings in parsed[name]:
        assert "refused" not in settings, settings


def test_a_flag_that_vllm_does_not_have_would_be_seen(
    parsed: dict[str, list[dict[str, str]]],
) -> None:
    assert "no-such-flag" in parsed["wrong"][0]["refused"]


def test_what_was_meant_is_what_vllm_understood(
    parsed: dict[str, list[dict[str, str]]],
) -> None:
    head, other = parsed["deepseek-r1-w8a8-two-a2-in-2-stages"]
    assert (head["tensor_parallel_size"], head["pipeline_parallel_size"]) == ("8", "2")
    assert (head["nnodes"], other["node_rank"], other["headless"]) == ("2", "1", "True")
    assert head["enable_expert_parallel"] == "True"
    (alone,) = parsed["deepseek-r1-w8a8-one-a3"]
    assert "mtp" in alone["speculative_config"]
    assert alone["data_parallel_size"] == "4"
    (stages,) = _commands("deepseek-llm-67b-bf16-8-in-4-stages")
    assert stages.environment["VLLM_PP_LAYER_PARTITION"] == "24,24,24,23"


def test_copies_and_modelslims_weights_are_understood(
    parsed: dict[str, list[dict[str, str]]],
) -> None:
    head, other = parsed["deepseek-v3-w8a8-modelslim-two-a2"]
    for settings in (head, other):
        assert settings["data_parallel_size"] == "4"
        assert settings["data_parallel_size_local"] == "2"
        assert settings["data_parallel_address"] == "'10.0.0.1'"
        assert settings["data_parallel_rpc_port"] == "13389"
        assert settings["quantization"] == "'ascend'"
        assert "mtp" in settings["speculative_config"]
    assert (other["data_parallel_start_rank"], other["headless"]) == ("2", "True")
    assert "data_parallel_start_rank" not in head


def test_somebody_reads_every_variable() -> None:
    names = {name for recipe in RECIPES for c in _commands(recipe) for name in c.environment}
    unread = names - OF_CANN
    for package in READERS:
        for file in _files_of(package):
            unread -= {name for name in unread if name.encode() in file.read_bytes()}
            if not unread:
                return
    assert not unread


def _files_of(package: str) -> list[Path]:
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent
    # The largest library of torch is read last, and only if something is still unread.
    libraries = [folder / "lib" / f"lib{name}.so" for name in ("torch_npu", "torch_cpu")]
    return [*folder.rglob("*.py"), *(library for library in libraries if library.is_file())]
