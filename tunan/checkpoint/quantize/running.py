"""Runs a checkpoint through transformers on the CPU, for what only a running model can tell.

The whole model is in memory: `bytes_needed` says how much that is, before anything is loaded.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tunan.checkpoint.source import Source, TensorInfo
from tunan.errors import CheckFailedError, OutsideError

if TYPE_CHECKING:
    import torch

# Up to this many weights they are held in float32, beyond in bfloat16.
FLOAT32_WEIGHTS = 2_000_000_000
# Beside the weights: the interpreter with PyTorch, and the activations of a window.
OVERHEAD_BYTES = 2 << 30
WINDOW_TOKENS = 512
_READ_ELEMENTS = 4 << 20

_EXPERTS = ".mlp.experts."


@dataclass(frozen=True)
class Running:
    """A model of transformers, ready to be called, and its tokenizer."""

    model: Any
    tokenizer: Any

    def count(self, text: str) -> int:
        """How many tokens `text` has."""
        return len(self.tokenizer(text, verbose=False)["input_ids"])

    def windows(self, text: str, most: int) -> "Iterator[torch.Tensor]":
        """At most `most` tokens of `text` in windows [1, n], n <= 512; none shorter than 2.

        Raises CheckFailedError for a text too short for one.
        """
        import torch

        tokens = self.tokenizer(text, verbose=False)["input_ids"][:most]
        if len(tokens) < 2:
            raise CheckFailedError("the text to run the model on has fewer than two tokens")
        for start in range(0, len(tokens), WINDOW_TOKENS):
            window = tokens[start : start + WINDOW_TOKENS]
            if len(window) > 1:
                yield torch.tensor([window])


def bytes_needed(tensors: Mapping[str, TensorInfo]) -> int:
    """Memory that running a checkpoint with these tensors takes."""
    weights = sum(prod(info.shape) for info in tensors.values())
    return weights * (4 if weights <= FLOAT32_WEIGHTS else 2) + OVERHEAD_BYTES


def fits(source: Source) -> bool:
    """Whether there is memory to run a checkpoint in."""
    return bytes_needed(source.tensors) <= psutil.virtual_memory().available


def run_source(source: Source) -> Running:
    """Loads a source into transformers' model of its architecture, in evaluation mode.

    Raises CheckFailedError if there is not the memory, OutsideError if transformers has no such
    model or is missing.
    """
    needed, free = bytes_needed(source.tensors), psutil.virtual_memory().available
    if needed > free:
        raise CheckFailedError(
            f"{source.path}: running this model takes {needed / 1e9:.1f} GB of memory and "
            f"{free / 1e9:.1f} GB are free; use a machine that has it"
        )
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise OutsideError(f"running a model takes transformers: {error}") from error
    weights = sum(prod(info.shape) for info in source.tensors.values())
    dtype = torch.float32 if weights <= FLOAT32_WEIGHTS else torch.bfloat16
    with tempfile.TemporaryDirectory() as directory:
        _write_companions(source, Path(directory))
        try:
            # Said, not left out: transformers would ask on a terminal.
            ours = {"trust_remote_code": False}
            config = AutoConfig.from_pretrained(directory, **ours)
            tokenizer = AutoTokenizer.from_pretrained(directory, **ours)
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, **ours)
        except (ValueError, KeyError, OSError) as error:
            first = str(error).splitlines()[0] if str(error) else repr(error)
            raise OutsideError(f"{source.path}: transformers cannot run it: {first}") from error
    _fill(model, source)
    return Running(model.eval(), tokenizer)


def _write_companions(source: Source, directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps(dict(source.config)))
    for name, content in source.auxiliary.items():
        (directory / name).write_bytes(content)


def _fill(model: Any, source: Source) -> None:
    """Copies every tensor into the model's own, which it must all cover."""
    import torch

    with torch.no_grad():
        for name, parameter in model.state_dict(keep_vars=True).items():
            if name == "lm_head.weight" and name not in source.tensors:
                continue  # tied to the embedding
            for stored, part in places(name, parameter.data, source):
                _copy(source, stored, part)


def places(
    name: str, parameter: "torch.Tensor", source: Source
) -> "Iterator[tuple[str, torch.Tensor]]":
    """What of a parameter is stored under which name: transformers 5 holds the experts of a
    layer in one tensor, gate above up."""
    if name in source.tensors:
        yield name, parameter
        return
    prefix, _, kind = name.rpartition(".")
    if not name.endswith((f"{_EXPERTS}gate_up_proj", f"{_EXPERTS}down_proj")):
        raise OutsideError(f"{source.path}: transformers wants {name}, which no checkpoint has")
    for expert, own in enumerate(parameter):
        names = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
        for stored, part in zip(names, own.chunk(len(names)), strict=True):
            yield f"{prefix}.{expert}.{stored}.weight", part


def _copy(source: Source, name: str, parameter: "torch.Tensor") -> None:
    info = source.tensors[name]
    if not info.shape:
        parameter.copy_(source.rows(name, 0, 1))
        return
    rows = max(1, _READ_ELEMENTS // max(1, prod(info.shape[1:])))
    step = -(-rows // info.row_multiple) * info.row_multiple
    for start in range(0, info.shape[0], step):
        stop = min(start + step, info.shape[0])
        parameter[start:stop].copy_(source.rows(name, start, stop))
    source.release(name)
