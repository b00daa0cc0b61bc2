"""One rank's parameters without its peers. Runs in a vLLM process.

Building and loading a model exchanges nothing between ranks; it only asks its groups for
their size and the process's place in them. So the groups of this one process are told that
they are larger than they are, and the engine's own code builds and fills that rank's (or
pipeline stage's) parameters.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


def load(question: dict[str, Any]) -> dict[str, Any]:
    """Loads {"model", "degree", "rank", "load_format"} as one rank would; more may be given:
    "options" of the loader, "stages" and "stage" of a pipeline, other "arguments" of the engine.

    Returns {"parameters": {name: sha256 of shape, dtype and bytes}, "warnings": [...]}, or
    {"error": ...} with the message of what the loader raised.
    """
    import vllm

    from tunan.errors import TunanError

    expected = question.get("expect_vllm", vllm.__version__)
    if expected != vllm.__version__:
        raise AssertionError(f"this is vLLM {vllm.__version__}, not {expected}")
    try:
        with warnings_of_loader() as warnings, one_rank(question) as (vllm_config, loader):
            model = _build(vllm_config)
            loader.load_weights(model, vllm_config.model_config)
            parameters = {name: _digest(p) for name, p in model.named_parameters()}
    except TunanError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"parameters": parameters, "warnings": warnings}


def load_all(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`load` for each."""
    return [load(question) for question in questions]


@contextmanager
def one_rank(question: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """(configuration, loader) in a process group that takes itself for one rank of `degree`."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import (
        destroy_model_parallel,
        get_pp_group,
        get_tp_group,
        initialize_model_parallel,
    )
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model_loader

    vllm_config = EngineArgs(
        model=question["model"],
        dtype=question.get("dtype", "bfloat16"),
        enforce_eager=True,
        kv_cache_memory_bytes=64 << 20,
        load_format=question["load_format"],
        max_model_len=256,
        model_loader_extra_config=question.get("options", {}),
        **question.get("arguments", {}),
    ).create_engine_config()
    with set_current_vllm_config(vllm_config):
        _start_world()
        initialize_model_parallel(1, 1)
        group = get_tp_group()
        group.world_size, group.rank_in_group = question["degree"], question["rank"]
        stages, stage = question.get("stages", 1), question.get("stage", 0)
        pipeline = get_pp_group()
        pipeline.ranks, pipeline.rank = list(range(stages)), stage
        pipeline.world_size, pipeline.rank_in_group = stages, stage
        try:
            yield vllm_config, get_model_loader(vllm_config.load_config)
        finally:
            destroy_model_parallel()


@contextmanager
def warnings_of_loader() -> Iterator[list[str]]:
    """What the loader warns of while the block runs."""
    import logging

    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("tunan.engine.loader")
    log.addHandler(handler)
    try:
        yield heard
    finally:
        log.removeHandler(handler)


def _build(vllm_config: Any) -> Any:
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_default_torch_dtype(vllm_config.model_config.dtype):
        return initialize_model(vllm_config, model_config=vllm_config.model_config)


@cache
def _start_world() -> None:
    from vllm.distributed import init_distributed_environment
    from vllm.utils.network_utils import get_open_port

    init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")


def _digest(parameter: torch.Tensor) -> str:
    content = parameter.detach().contiguous().view(torch.uint8).numpy().tobytes()
    head = f"{list(parameter.shape)} {parameter.dtype} ".encode()
    return hashlib.sha256(head + content).hexdigest()
