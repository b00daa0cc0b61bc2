"""Serve DeepSeek models on Kunpeng and Ascend servers: see README.md.

`tunan.LLM` and `tunan.SamplingParams` are vLLM's with Tunan's defaults; neither torch nor
vLLM is imported before one of them is called.
"""

TYPE_CHECKING = False  # as `typing` has it, which takes longer to load than all that is here
if TYPE_CHECKING:
    from tunan.llm import LLM, SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    if name in ("LLM", "SamplingParams"):
        from tunan import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'tunan' has no attribute {name!r}")
