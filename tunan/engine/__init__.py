"""The vLLM plugin (entry point group `vllm.general_plugins`) and what it registers."""


def register() -> None:
    """Makes Tunan's load format and CPU kernels known to vLLM in this process.

    vLLM calls it in every process of its own, possibly more than once, and lets what it
    raises stop the engine: so it does its work once, and a vLLM that lacks what it needs
    only gets a warning.
    """
    from tunan.engine import compat

    compat.register_once()

    from tunan.engine.cpu import registration

    registration.register()
