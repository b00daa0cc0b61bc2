"""`tunan.json`: what a converted checkpoint is, and the size and hash of every file of it."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from tunan.errors import CheckFailedError, UsageError

MANIFEST_FILE = "tunan.json"
FORMAT = 1

Sha256 = str


def _inside(file: str) -> str:
    """A manifest may come from a stranger: what it lists lies in the checkpoint."""
    plain = file.isprintable() and "\\" not in file
    if not plain or any(part in ("", ".", "..") for part in file.split("/")):
        raise ValueError(f"{file!r} is not a path inside the checkpoint")
    return file


RelativePath = Annotated[str, AfterValidator(_inside)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Block(_Part):
    """One safetensors file.

    `file` is relative to the checkpoint, `bytes` the size of the whole file, `layers` the
    decoder layers that have a tensor in it (none: embedding, norm, head). `rank` is set in
    blocks that are already fused and cut for one tensor-parallel rank.
    """

    file: RelativePath
    bytes: int = Field(gt=0)
    sha256: Sha256 = Field(pattern="^[0-9a-f]{64}$")
    layers: tuple[int, ...] = Field(strict=False)
    rank: int | None = Field(default=None, ge=0)


class CarriedFile(_Part):
    """A file beside the blocks: configuration, index, tokenizer."""

    file: RelativePath
    bytes: int = Field(ge=0)
    sha256: Sha256 = Field(pattern="^[0-9a-f]{64}$")


class KeptPrecision(_Part):
    """Tensors that keep their stored precision whatever the checkpoint's own is."""

    suffix: str
    dtype: str
    tensors: int = Field(gt=0)


class LayerError(_Part):
    """||quantised - source|| / ||source|| (Frobenius) of one weight."""

    weight: str
    relative_error: float = Field(ge=0)


class Quantization(_Part):
    """How the checkpoint was quantised, and what it cost in each weight.

    `weights` and `activations` say bits, granularity and rounding in words for people;
    engines read `quantization_config` in config.json. `int8_layers` are those held in int8
    where the others are int4, as many as `average_bits` a weight allow, scales included; None:
    nothing is mixed.
    """

    scheme: str
    weights: str
    activations: str
    quantised_weights: int = Field(gt=0)
    ignored: tuple[str, ...] = Field(strict=False)
    mean_relative_error: float = Field(ge=0)
    worst_weights: tuple[LayerError, ...] = Field(strict=False)
    average_bits: float | None = None
    int8_layers: tuple[str, ...] = Field(default=(), strict=False)


class Quality(_Part):
    """The quantised model against the unquantised one on a text, run through transformers.

    `kl_divergence` is the mean of KL(before || now) over the tokens, in nats; `greedy_agreement`
    the share of tokens at which both find the same one likeliest, the text before it given.
    `standard_error` is that of `perplexity_increase`; None in checkpoints of before it was kept.
    """

    text: str
    tokens: int = Field(gt=0)
    perplexity_before: float
    perplexity: float
    perplexity_increase: float
    standard_error: float | None = None
    kl_divergence: float
    greedy_agreement: float = Field(ge=0, le=1)


class CacheQuantization(_Part):
    """An int8 key/value cache: its scheme by the engine's name, the text and the number of its
    layers that the scales were found on."""

    scheme: Literal["C8"]
    calibrated_on: str
    layers: int = Field(gt=0)


class Origin(_Part):
    """Where the weights came from; `sha256` is over file names, sizes and headers (and a
    few samples of the data), not over all of the data."""

    path: str
    sha256: Sha256


class Manifest(_Part):
    """The content of `tunan.json`. `Manifest.read(directory)` is strict: a key it does not
    know, or one that is missing, is an error that names it."""

    format: Literal[1] = 1
    model_name: str
    architecture: str
    precision: Literal["bf16", "fp16", "fp32"]
    quantization: Quantization | None = None
    kv_cache: CacheQuantization | None = None
    quality: Quality | None = None
    target: str
    max_batch_size: int = Field(gt=0)
    tensor_parallel_degree: int = Field(gt=0)
    pipeline_parallel_degree: int = Field(gt=0)
    operators: dict[str, str | None]
    blocks: tuple[Block, ...] = Field(strict=False)
    files: tuple[CarriedFile, ...] = Field(strict=False)
    kept_precision: tuple[KeptPrecision, ...] = Field(default=(), strict=False)
    unexpected_tensors: tuple[str, ...] = Field(default=(), strict=False)
    source: Origin
    tool: str

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        files = [block.file for block in self.blocks] + [file.file for file in self.files]
        twice = next((file for file, count in Counter(files).items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is listed twice")
        if not self.blocks:
            raise ValueError("no blocks are listed")
        degree = self.tensor_parallel_degree
        stray = next((b for b in self.blocks if b.rank is not None and b.rank >= degree), None)
        if stray is not None:
            raise ValueError(f"{stray.file} is of rank {stray.rank}, of {degree} in all")
        return self

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Reads `directory/tunan.json`.

        Raises UsageError if there is none, CheckFailedError if it is not a manifest of a
        format known here.
        """
        path = directory / MANIFEST_FILE
        try:
            content = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(
                f"{directory}: no {MANIFEST_FILE}; give a directory written by 'tunan convert'"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise CheckFailedError(f"{path}: not readable as JSON ({error})") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise CheckFailedError(
                f"{path}: format {found!r}; this version of Tunan reads format {FORMAT}, "
                "convert the checkpoint again"
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise CheckFailedError(f"{path}: {_first(error)}") from error

    def write(self, directory: Path) -> None:
        """Writes `directory/tunan.json`, which appears once it is whole and on the disk; the
        caller syncs the directory."""
        unfinished = directory / (MANIFEST_FILE + ".tmp")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(self.to_json())
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(directory / MANIFEST_FILE)

    def to_json(self) -> str:
        """The manifest as indented JSON, one line a block."""
        content = self.model_dump(mode="json")
        blocks = _one_line_each(content.pop("blocks"))
        files = _one_line_each(content.pop("files"))
        head = json.dumps(content, indent=1, ensure_ascii=False)
        return f'{head[:-2]},\n "blocks": {blocks},\n "files": {files}\n}}\n'

    def blocks_of(self, rank: int | None) -> tuple[Block, ...]:
        """The blocks of one tensor-parallel rank, or (None) of the plain layout."""
        return tuple(block for block in self.blocks if block.rank == rank)


def rank_directory(tensor_parallel: int, rank: int) -> str:
    """Where the blocks of one rank lie inside a converted checkpoint."""
    return f"tensor-parallel-{tensor_parallel}/rank-{rank}"


def utf8(text: str) -> str:
    """`text` with the bytes of file names in another encoding spelled out: `\\xc4`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _one_line_each(items: Sequence[Any]) -> str:
    if not items:
        return "[]"
    return "[\n  " + ",\n  ".join(json.dumps(item, ensure_ascii=False) for item in items) + "\n ]"


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"])) or "the whole"
    return f"{where}: {problem['msg']}"
