"""The deployment files for large models: they load, fit their devices and print good scripts."""

from pathlib import Path

import pytest

from tests.install.checking import shellcheck
from tunan.ascend.catalogue import Model, models
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
    stored = model.int8_bytes if "-w8a8" in file.stem else model.bf16_bytes
    layers = max(parallel.layer_partition or (model.layers // parallel.pipeline,))
    part = layers / model.layers
    weights = stored * part / parallel.tensor
    cache = model.kv_bytes * part / (parallel.tensor if model.kv_split else 1)
    needed = weights + cache * (deployment.model.max_model_len or 0) + BESIDE
    assert needed <= DEVICE * deployment.memory.utilization


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
