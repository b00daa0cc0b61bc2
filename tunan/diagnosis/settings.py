"""What a log says of the engine's settings, so that advice can name the value to change."""

import re

_NUMBERS = (
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "tensor_parallel_size",
    "max_cudagraph_capture_size",
)
_SETTING = re.compile(rf"\b(?P<name>{'|'.join(_NUMBERS)})'?(?:=|: ?)(?P<value>\d+(?:\.\d+)?)\b")
_MODEL_LEN = re.compile(r"Using max model len (?P<value>\d+)")
WORDS = frozenset((*_NUMBERS, "len"))


def note_settings(text: str, settings: dict[str, float]) -> bool:
    """Adds what a line says, by vLLM's names; what was said first stays. Whether it says any."""
    said = [(match["name"], match["value"]) for match in _SETTING.finditer(text)]
    if length := _MODEL_LEN.search(text):
        said.append(("max_model_len", length["value"]))
    for name, value in said:
        settings.setdefault(name, float(value))
    return bool(said)
