"""The num_stages / device_map form."""

from typing import Any

import pytest

from tunan.config import deployment_from
from tunan.errors import UsageError

STAGES: list[dict[str, Any]] = [
    {"stage_id": 1, "devices": [2, 3]},
    {"stage_id": 0, "devices": [0, 1]},
]
MODEL = {"model": {"path": "/m"}}


@pytest.mark.parametrize("nested", [True, False])
def test_stages_become_pipeline_and_their_devices_tensor_parallelism(nested: bool) -> None:
    form = {"num_stages": 2, "device_map": STAGES}
    values = {**MODEL, "pipeline_config": form} if nested else {**MODEL, **form}
    parallel = deployment_from(values, "test").parallel
    assert (parallel.tensor, parallel.pipeline) == (2, 2)
    assert parallel.devices == (0, 1, 2, 3)
    assert parallel.layer_partition is None


def test_only_uneven_layers_become_a_partition() -> None:
    for layers, partition in (([3, 3], None), ([2, 4], (2, 4))):
        stages = [
            {"stage_id": i, "devices": [i], "num_layers": count} for i, count in enumerate(layers)
        ]
        values = {**MODEL, "num_stages": 2, "device_map": stages}
        assert deployment_from(values, "test").parallel.layer_partition == partition


def test_training_keys_and_micro_batches_warn(capsys: pytest.CaptureFixture[str]) -> None:
    form = {
        "num_stages": 2,
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "device_map": STAGES,
    }
    deployment_from({**MODEL, "pipeline_config": form}, "file.yaml")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "`gradient_accumulation_steps` only means something in training" in lines[0]
    assert "micro_batch_size" in lines[1]


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"num_stages": 3, "device_map": STAGES}, "each stage_id from 0 to 2 once"),
        ({"num_stages": 2, "device_map": [STAGES[0], STAGES[0]]}, "each stage_id"),
        (
            {"num_stages": 2, "device_map": [STAGES[0], {"stage_id": 0, "devices": [0]}]},
            "same number of devices",
        ),
        (
            {"num_stages": 2, "device_map": [{**STAGES[0], "num_layers": 2}, STAGES[1]]},
            "for every stage or for none",
        ),
        ({"num_stages": 2}, "device_map"),
        ({"num_stages": "2", "device_map": STAGES}, "num_stages"),
        ({"num_stages": 2, "device_map": STAGES, "stages": 1}, "stages"),
        (
            {"num_stages": 2, "device_map": [{**STAGES[0], "devices": [0, 1]}, STAGES[1]]},
            "twice",
        ),
    ],
)
def test_a_map_that_does_not_fit_is_refused(form: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        deployment_from({**MODEL, "pipeline_config": form}, "test")


def test_parallel_and_a_device_map_together_are_refused() -> None:
    values = {**MODEL, "num_stages": 2, "device_map": STAGES, "parallel": {"tensor": 1}}
    with pytest.raises(UsageError, match="either `parallel` or `device_map`"):
        deployment_from(values, "test")
