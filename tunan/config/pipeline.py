"""The `num_stages / micro_batch_size / device_map` form of a deployment file.

Each stage names its devices: the stages become pipeline parallelism and the devices of
one stage its tensor parallelism. Keys that only mean something in training are warned
about and left out.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from tunan.config.section import Count, Section
from tunan.errors import UsageError
from tunan.notices import warn

TRAINING_ONLY = (
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "learning_rate",
    "num_train_epochs",
    "optimizer",
    "pipeline_schedule",
    "weight_decay",
    "zero_stage",
)


class Stage(Section):
    """One pipeline stage: its number, its devices and, where uneven, its layers."""

    stage_id: Annotated[int, Field(ge=0)]
    devices: tuple[Annotated[int, Field(ge=0)], ...] = Field(strict=False, min_length=1)
    num_layers: Count | None = None


class PipelineFile(Section):
    """The pipeline part of the file."""

    num_stages: Count
    micro_batch_size: Count = 1
    device_map: tuple[Stage, ...] = Field(strict=False, min_length=1)


def is_pipeline_file(values: Mapping[str, Any]) -> bool:
    """Whether `values` uses this form, at the top or under `pipeline_config`."""
    return "pipeline_config" in values or "device_map" in values or "num_stages" in values


def pipeline_to_deployment(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The same deployment in Tunan's own form. Raises `UsageError`."""
    rest = dict(values)
    nested = rest.pop("pipeline_config", None)
    if nested is not None and not isinstance(nested, Mapping):
        raise UsageError(f"{origin}: `pipeline_config` must be a section with keys")
    pipeline = dict(nested or {})
    for key in PipelineFile.model_fields:
        if key in rest:
            pipeline[key] = rest.pop(key)
    for place in (rest, pipeline):
        _drop_training_keys(place, origin)
    if "parallel" in rest:
        raise UsageError(f"{origin}: give either `parallel` or `device_map`, not both")
    return {**rest, "parallel": _parallel(_checked(pipeline, origin), origin)}


def _drop_training_keys(values: dict[str, Any], origin: str) -> None:
    for key in TRAINING_ONLY:
        if values.pop(key, None) is not None:
            warn(f"{origin}: `{key}` only means something in training and is ignored")


def _checked(pipeline: Mapping[str, Any], origin: str) -> PipelineFile:
    try:
        parsed = PipelineFile.model_validate(dict(pipeline))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(key) for key in first["loc"])
        raise UsageError(f"{origin}: pipeline_config `{name}`: {first['msg']}") from None
    if parsed.micro_batch_size > 1:
        warn(
            f"{origin}: `micro_batch_size` is ignored: vLLM keeps num_stages batches in flight "
            "and sizes each one by scheduler.max_num_seqs"
        )
    return parsed


def _parallel(pipeline: PipelineFile, origin: str) -> dict[str, Any]:
    stages = sorted(pipeline.device_map, key=lambda stage: stage.stage_id)
    if [stage.stage_id for stage in stages] != list(range(pipeline.num_stages)):
        raise UsageError(
            f"{origin}: device_map must have each stage_id from 0 to {pipeline.num_stages - 1} once"
        )
    widths = {len(stage.devices) for stage in stages}
    if len(widths) > 1:
        raise UsageError(
            f"{origin}: every stage needs the same number of devices (tensor-parallel size), "
            f"device_map has {sorted(widths)}"
        )
    devices = tuple(device for stage in stages for device in stage.devices)
    parallel: dict[str, Any] = {
        "tensor": widths.pop(),
        "pipeline": pipeline.num_stages,
        "devices": devices,
    }
    layers = [stage.num_layers for stage in stages]
    if None in layers and set(layers) != {None}:
        raise UsageError(f"{origin}: give `num_layers` for every stage or for none")
    if len(set(layers)) > 1:
        # vLLM splits evenly by itself; only an uneven wish has to be told to it.
        parallel["layer_partition"] = tuple(layers)
    return parallel
