"""The vllm-ascend command for each machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tunan.ascend.recipe import NodeCommand, node_commands
from tunan.config import deployment_from
from tunan.errors import UsageError


def commands(target: str = "ascend910b3", **values: object) -> tuple[NodeCommand, ...]:
    deployment = deployment_from({"model": {"path": "/models/x"}, **values}, "test")
    return node_commands(deployment, target, ("--tensor-parallel-size=4",))


def test_one_machine_serves_on_the_deployments_address() -> None:
    (command,) = commands(parallel={"tensor": 4}, gateway={"port": 9000})
    assert command.arguments[:3] == ("vllm", "serve", "/models/x")
    assert "--tensor-parallel-size=4" in command.arguments
    assert "--host=127.0.0.1" in command.arguments
    assert "--port=9000" in command.arguments
    assert command.environment["ASCEND_RT_VISIBLE_DEVICES"] == "0,1,2,3"
    assert not [a for a in command.arguments if a.startswith("--nnodes")]


def test_vllm_ascends_own_plugins_are_allowed_beside_ours() -> None:
    names = commands()[0].environment["VLLM_PLUGINS"].split(",")
    assert {"ascend", "ascend_model", "ascend_model_loader", "tunan"} <= set(names)


def test_two_machines_get_their_ranks_and_only_the_head_listens() -> None:
    head, other = commands(parallel={"tensor": 8, "pipeline": 2}, nodes=["10.0.0.1", "10.0.0.2"])
    for rank, command in enumerate((head, other)):
        assert "--nnodes=2" in command.arguments
        assert f"--node-rank={rank}" in command.arguments
        assert "--master-addr=10.0.0.1" in command.arguments
        assert command.environment["HCCL_IF_IP"] == f"10.0.0.{rank + 1}"
        assert command.environment["HCCL_SOCKET_IFNAME"] == "$NIC"
        assert len(command.environment["ASCEND_RT_VISIBLE_DEVICES"].split(",")) == 8
    assert "--headless" not in head.arguments
    assert "--headless" in other.arguments
    assert not [a for a in other.arguments if a.startswith("--port")]


def test_copies_are_spread_over_the_machines_as_vllm_counts_them() -> None:
    head, other = commands(parallel={"tensor": 4, "data": 4}, nodes=["10.0.0.1", "10.0.0.2"])
    for command in (head, other):
        assert {
            "--data-parallel-size=4",
            "--data-parallel-size-local=2",
            "--data-parallel-address=10.0.0.1",
            "--data-parallel-rpc-port=13389",
        } <= set(command.arguments)
        assert len(command.environment["ASCEND_RT_VISIBLE_DEVICES"].split(",")) == 8
        assert command.environment["HCCL_INTRA_ROCE_ENABLE"] == "0"
        assert not [a for a in command.arguments if a.startswith(("--nnodes", "--master"))]
    assert "--port=8080" in head.arguments
    assert {"--data-parallel-start-rank=2", "--headless"} <= set(other.arguments)
    assert not {"--data-parallel-start-rank=0", "--headless"} & set(head.arguments)


def test_the_head_binds_an_address_where_the_machines_have_names() -> None:
    head, other = commands(parallel={"tensor": 8, "data": 2}, nodes=["one", "two"])
    assert "--data-parallel-address=$ADDRESS" in head.arguments
    assert "--data-parallel-address=one" in other.arguments


def test_copies_on_one_machine_need_no_address() -> None:
    (command,) = commands("ascend910c", parallel={"tensor": 4, "data": 4})
    assert "--data-parallel-size=4" in command.arguments
    assert not [a for a in command.arguments if a.startswith("--data-parallel-a")]
    assert "HCCL_INTRA_PCIE_ENABLE" not in command.environment


def test_a_flag_that_the_deployment_gives_is_not_given_twice(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"n_routed_experts": 8}))
    (tmp_path / "quant_model_description.json").write_text("{}")
    given = ["--quantization=ascend", "--enable_expert_parallel"]
    (command,) = commands(model={"path": str(tmp_path)}, engine_arguments=given)
    names = [a.split("=")[0].replace("_", "-") for a in command.arguments]
    assert names.count("--quantization") == names.count("--enable-expert-parallel") == 1


def test_named_devices_are_used() -> None:
    (command,) = commands(parallel={"tensor": 2, "devices": [4, 5]})
    assert command.environment["ASCEND_RT_VISIBLE_DEVICES"] == "4,5"


def test_experts_and_modelslim_weights_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"n_routed_experts": 8}))
    (tmp_path / "quant_model_description.json").write_text("{}")
    (command,) = commands(model={"path": str(tmp_path)})
    assert "--enable-expert-parallel" in command.arguments
    assert "--quantization=ascend" in command.arguments


def test_the_310p_computes_in_float16() -> None:
    (command,) = commands("ascend310p")
    assert "--dtype=float16" in command.arguments
    with pytest.raises(UsageError, match="310P has float16 only"):
        commands("ascend310p", model={"path": "/m", "dtype": "bfloat16"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodes": ["a", "b"]}, "1 ranks .* over 2 nodes"),
        (
            {"nodes": ["a", "b"], "parallel": {"tensor": 4, "data": 3}},
            "3 copies cannot be spread evenly over 2 nodes",
        ),
        (
            {
                "parallel": {"pipeline": 2},
                "engine_arguments": ["--speculative-config", '{"method": "mtp"}'],
            },
            "refuses multi-token prediction",
        ),
        (
            {
                "parallel": {"pipeline": 2},
                "engine_arguments": ['--speculative_config={"method":"deepseek_mtp"}', "--seed=1"],
            },
            "refuses multi-token prediction",
        ),
        ({"parallel": {"tensor": 4, "devices": [0]}}, "names 1 devices, each node needs 4"),
        ({"memory": {"kv_cache": "fp8"}}, "no kernels on Ascend"),
        ({"memory": {"kv_cache": "int8"}}, "int8 is for CPUs"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        commands(**values)
