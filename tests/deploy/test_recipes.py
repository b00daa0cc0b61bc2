"""The deployment files for large models: they load, fit their devices and print good scripts."""

from pathlib import Path

import pytest

from tests.install.checking import shellcheck
from tunan.ascend.catalogue import Model, models
from tunan.ascend.target import VLLM_ASCEND_VERSION, VLLM_VERSION
from tunan.cli.main import main
from tunan.config import Deployment, load_deployment
from tunan.config.unavailable import refuse_unavailable

FILES = sorted((Path(__file__).parents[2] / "deploy" / "recipes").glob("*.yaml"))
GIB = 1 << 30
DEVICE = 64 * GIB
# Activations, buffers of HCCL and captured graphs.
BESIDE = 4 * GIB
by_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def model_of(deployment: Deployment) -> Model:
    """The longest of the catalogue's names with which the deployment's begins."""
    named = [m for m in models() if deployment.name.startswith(m.name.lower())]
    return max(named, key=lambda model: len(model.name))


@by_file
def test_a_recipe_is_a_deployment_of_the_name_of_its_file(file: Path) -> None:
    deployment = load_deployment(file)
    refuse_unavailable(deployment)
    assert deployment.name == file.stem


@by_file
def test_the_split_is_one_that_the_model_allows(file: Path) -> None:
    deployment = load_deployment(file)
    model, parallel = model_of(deployment), deployment.parallel
    assert parallel.tensor in model.tensor
    if parallel.layer_partition:
        assert sum(parallel.layer_partition) == model.layers
    else:
        assert model.layers % parallel.pipeline == 0
    assert (deployment.model.max_model_len or 0) <= model.max_tokens


@by_file
def test_no_recipe_predicts_several_tokens_in_a_pipeline(file: Path) -> None:
    """vllm-ascend 0.23 refuses the two together."""
    deployment = load_deployment(file)
    predicts = any("mtp" in argument for argument in deployment.engine_arguments)
    assert not (predicts and deployment.parallel.pipeline > 1)


@by_file
def test_weights_and_the_longest_request_fit_on_each_device(file: Path) -> None:
    deployment = load_deployment(file)
    model, parallel = model_of(deployment), deployment.parallel
    stored, element = (model.int8_bytes, 1) if "-w8a8" in file.stem else (model.bf16_bytes, 2)
    layers = max(parallel.layer_partition or (model.layers // parallel.pipeline,))
    part = layers / model.layers
    # Copies share the routed experts and nothing else.
    experts = model.experts * element if parallel.data > 1 else 0
    weights = (stored - experts) * part / parallel.tensor
    weights += experts * part / (parallel.tensor * parallel.data)
    cache = model.kv_bytes * part / (parallel.tensor if model.kv_split else 1)
    needed = weights + cache * (deployment.model.max_model_len or 0) + BESIDE
    assert needed <= DEVICE * deployment.memory.utilization


@by_file
def test_copies_fill_whole_machines_and_share_their_experts(file: Path) -> None:
    deployment = load_deployment(file)
    if deployment.parallel.data > 1:
        assert model_of(deployment).experts
        assert "--enable-expert-parallel" in deployment.engine_arguments
        devices = {"ascend910c": 16, "ascend910b3": 8}[deployment.target]
        assert deployment.parallel.world_size == devices * max(1, len(deployment.nodes))


def test_a_pipeline_file_is_printed_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline_config.yaml"
    file.write_text(
        "model: {path: /models/deepseek-llm-67b}\ntarget: ascend910b3\nnum_stages: 2\n"
        "micro_batch_size: 1\ngradient_accumulation_steps: 4\ndevice_map:\n"
        "  - {stage_id: 0, devices: [0, 1, 2, 3], num_layers: 48}\n"
        "  - {stage_id: 1, devices: [4, 5, 6, 7], num_layers: 47}\n"
    )
    assert main(["serve", "--config", str(file), "--print-command"]) == 0
    printed = capsys.readouterr()
    assert "--tensor-parallel-size=4" in printed.out
    assert "--pipeline-parallel-size=2" in printed.out
    assert "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in printed.out
    assert "export VLLM_PP_LAYER_PARTITION=48,47" in printed.out
    assert "`gradient_accumulation_steps` only means something in training" in printed.err


@by_file
def test_shellcheck_accepts_what_each_machine_is_to_run(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = load_deployment(file).nodes
    places = [["--node", str(number)] for number in range(len(nodes))] or [[]]
    for place in places:
        assert main(["serve", "--config", str(file), "--print-command", *place]) == 0
        script = capsys.readouterr().out
        # The vendor's set_env.sh is not here.
        assert shellcheck(script, "--exclude=SC1091") == ""
        assert script.count("vllm serve /models/") == 1
        assert f"# for vLLM {VLLM_VERSION}, vllm-ascend {VLLM_ASCEND_VERSION}, " in script
