"""What vLLM knows after its plugins are loaded. Runs in a vLLM process."""

import logging
from typing import Any


def register_again(_: None) -> dict[str, Any]:
    """Loads vLLM's plugins, registers once more; returns the loader and what was logged."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    loader = type(get_model_loader(LoadConfig(load_format="tunan")))
    logged: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    for name in ("vllm.model_executor.model_loader", "tunan.engine.compat"):
        logging.getLogger(name).addHandler(handler)

    from tunan.engine import register

    register()
    return {"loader": loader.__qualname__, "logged": logged}


def register_without_a_part(_: None) -> list[str]:
    """Registers with a vLLM that lacks the registry; returns what was logged."""
    import vllm.model_executor.model_loader as model_loader

    from tunan.engine import register

    del model_loader.register_model_loader
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tunan.engine.compat").addHandler(handler)
    register()
    return logged
