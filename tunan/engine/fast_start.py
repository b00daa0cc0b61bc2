"""Starts vLLM's OpenAI server with one set of imports instead of three.

Stock vLLM on a CPU spawns EngineCore and a worker one after another, and each imports torch
and vLLM again: two thirds of an eager start. On a CPU vLLM always chooses `spawn`
(platforms/cpu.py sets VLLM_WORKER_MULTIPROC_METHOD in `check_and_update_config`) and always
puts the worker in a process of its own, because only a new process reads the OpenMP
variables it sets. Our supervisor sets those before the first process, so neither is needed
for a single rank: here EngineCore is forked (vLLM's own default on other platforms) and runs
the worker itself (vLLM's `uni` executor, its default elsewhere too).

Nothing of vLLM is patched: `build_async_engine_client` and `run_server` are put together
anew from their public parts, with those two choices made between the parts. Checked
against vLLM 0.32.0. Where the parts differ (`parts_fit`) or a second thread could be caught
by the fork, vLLM's own `run_server` is used; on an NPU, whose driver does not survive a fork, too.
"""

import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

from tunan.engine import timeline
from tunan.engine.api_server import parse_arguments, run_server

CHECKED_VLLM = "0.32.0"
ENGINE_CPUS = "TUNAN_ENGINE_CPUS"
STOCK_START = "TUNAN_STOCK_START"  # set to 1 to start exactly as vLLM does
# The front end, which EngineCore does without: imported while that loads the model.
FRONT_END = "vllm.entrypoints.launchers.api_server.entry"


def import_engine() -> None:
    """Imports what takes the most of a start, if it is there; if not, whoever needs it says so."""
    with contextlib.suppress(ImportError):
        from vllm.platforms import current_platform

        if current_platform.is_cpu():
            # First, as the module says of itself: it prepares torch for a machine without GPU.
            import vllm.v1.worker.cpu_worker
        import vllm.entrypoints.launchers.launcher  # noqa: F401


def run() -> None:
    """Parses vLLM's flags from `sys.argv` and serves. Exits through `SystemExit` on bad flags."""
    import uvloop

    args = parse_arguments()
    timeline.mark("flags")
    if _single_rank(args) and os.environ.get(STOCK_START) != "1" and parts_fit():
        uvloop.run(_serve(args))
    else:
        uvloop.run(run_server(args))


def parts_fit() -> bool:
    """Whether this vLLM has the parts in the shape this file was checked against.

    Of the front end only that it is there: its shape is looked at in the tests.
    """
    try:
        if importlib.util.find_spec(FRONT_END) is None:
            return False
        from vllm.model_executor.models import ModelRegistry
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.utils import CoreEngineProcManager
    except ImportError:
        return False
    wanted = {
        AsyncLLM.from_vllm_config: (
            "vllm_config",
            "usage_context",
            "enable_log_requests",
            "aggregate_engine_logging",
            "disable_log_stats",
        ),
        AsyncLLM.shutdown: ("timeout",),
        ModelRegistry.register_model: ("model_arch", "model_cls"),
    }
    has_parameters = all(
        set(names) <= set(inspect.signature(part).parameters) for part, names in wanted.items()
    )
    starts_by_variable = "get_mp_context" in inspect.getsource(CoreEngineProcManager.__init__)
    return has_parameters and starts_by_variable


def _single_rank(args: Namespace) -> bool:
    """Whether one process can be the whole engine, on vLLM's own CPU platform."""
    from vllm.platforms import current_platform

    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes")
    return (
        current_platform.is_cpu()
        and all(getattr(args, name, 1) in (None, 1) for name in sizes)
        and getattr(args, "distributed_executor_backend", None) is None
    )


async def _serve(args: Namespace) -> None:
    """`run_server` with the two choices of this file made between its parts."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.launcher import setup_server
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.system_utils import decorate_logs

    decorate_logs("APIServer")
    address, listener = setup_server(args, reuse_port=False)
    engine_args = AsyncEngineArgs.from_cli_args(args)
    _register_model_class(Path(engine_args.model))
    config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    timeline.mark("configuration")
    engine = _forked_engine(config, engine_args)
    timeline.mark("engine")
    try:
        front_end = importlib.import_module(FRONT_END)
        await engine.reset_mm_cache()
        stopped = await front_end.build_and_serve(engine, address, listener, args)
    finally:
        engine.shutdown(timeout=config.shutdown_timeout)
    try:
        await stopped
    finally:
        listener.close()


def _register_model_class(checkpoint: Path) -> None:
    """Imports the model's class here, which the forked EngineCore needs loaded anyway.

    vLLM would start one more process with all its imports to look at the class, the first
    time it meets an architecture (it keeps devices that cannot be forked out of this one;
    a CPU can).
    """
    from vllm.model_executor.models import ModelRegistry

    try:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        names = [str(name) for name in config["architectures"]]
    except (OSError, ValueError, KeyError, TypeError):
        return  # vLLM says better what is wrong with it
    for name in names:
        lazy = ModelRegistry.models.get(name)
        if lazy is not None:
            ModelRegistry.register_model(name, lazy.load_model_cls())


def _forked_engine(config: Any, engine_args: Any) -> Any:
    """The engine client of a forked EngineCore that runs the worker itself."""
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    if _no_python_threads():
        # Shared pages stay shared if the collector does not write its marks into them.
        gc.freeze()
        os.register_at_fork(
            after_in_child=_bind_to_engine_cpus, after_in_parent=_import_front_end_meanwhile
        )
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        config.parallel_config.distributed_executor_backend = "uni"
    return AsyncLLM.from_vllm_config(
        vllm_config=config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        enable_log_requests=engine_args.enable_log_requests,
        aggregate_engine_logging=engine_args.aggregate_engine_logging,
        disable_log_stats=engine_args.disable_log_stats,
    )


def _no_python_threads() -> bool:
    """Whether a fork copies this process whole: another thread could hold a lock for ever.

    Idle native pools do not count: OpenBLAS ends its own before a fork, and those of ZeroMQ
    and OpenMP are made anew by the child's first use.
    """
    return threading.active_count() == 1


def _import_front_end_meanwhile() -> None:
    """Makes use of the time that this process waits for EngineCore; threads are harmless now."""
    threading.Thread(target=importlib.import_module, args=(FRONT_END,), daemon=True).start()


def _bind_to_engine_cpus() -> None:
    """Keeps this process and its threads on the CPUs that the supervisor chose."""
    timeline.mark("fork")
    if chosen := os.environ.get(ENGINE_CPUS):
        from tunan.supervisor.machine import parse_list

        os.sched_setaffinity(0, parse_list(chosen))
