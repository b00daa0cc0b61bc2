"""A checkpoint to read from, whatever its format: names, shapes and rows on demand.

`open_source` looks at a path and answers with a `Source`. Opening reads headers only;
tensor data is mapped and paged in by `Source.rows`, so a 700 GB model opens in the
memory of its header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tunan.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    import torch

STATE_DICT_SUFFIXES = (".pt", ".pth", ".bin")
GGUF_MAGIC = b"GGUF"
LFS_POINTER_START = b"version https://git-lfs.github.com/spec"


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a tensor before its data is read.

    `name` is the Hugging Face name (`model.layers.0.mlp.up_proj.weight`), `dtype` the
    safetensors code of what `rows` returns (quantised sources that are dequantised on
    the way say `F32`), `stored_bytes` the bytes in `file`. `rows` must be asked for
    multiples of `row_multiple` (128 for block-wise FP8), except for the end.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored_bytes: int
    file: Path
    row_multiple: int = 1


class Source(Protocol):
    """An open checkpoint.

    `config` is the content of a Hugging Face config.json, without `quantization_config`
    where `rows` dequantises; `tensors` is in file order; `auxiliary` holds the small files
    that travel with the weights (tokenizer, chat template, generation config).
    """

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def auxiliary(self) -> Mapping[str, bytes]: ...

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) of `name` along dimension 0, on the CPU, in `TensorInfo.dtype`.

        A 0-d tensor comes whole whatever the bounds. Plainly stored tensors are views of
        the mapped file: read them, never write to them.
        """
        ...

    def fingerprint(self) -> str:
        """sha256 (hex) over the weight files' names, sizes, headers and a few samples of data."""
        ...

    def release(self, name: str) -> None:
        """Gives back the memory pages of `name`; reading it again only costs the disk."""
        ...


def open_source(path: Path, config: Path | None = None) -> Source:
    """Opens a Hugging Face directory, a GGUF file or a state-dict file (.pt, .pth, .bin).

    `config` names the config.json of a state-dict file when it does not lie beside it.
    Raises `UsageError` where the path is nothing Tunan reads, `CheckFailedError` where it
    is but is damaged; either is one line that names the file and the tensor.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory")
    if path.is_dir():
        if config is not None:
            raise UsageError(f"{path}: a separate config.json is for single state-dict files only")
        return _open_directory(path)
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER_START))
    if not start:
        raise CheckFailedError(f"{path}: the file is empty; fetch it again")
    refuse_lfs_pointer(path, start)
    if start.startswith(GGUF_MAGIC):
        from tunan.checkpoint.gguf_source import open_gguf

        if config is not None:
            raise UsageError(f"{path}: a separate config.json is for single state-dict files only")
        return open_gguf(path)
    if path.suffix == ".gguf":
        raise CheckFailedError(f"{path}: does not begin with 'GGUF'; fetch the file again")
    if path.suffix in STATE_DICT_SUFFIXES:
        from tunan.checkpoint.torch_source import open_state_dict

        return open_state_dict(path, config)
    if path.suffix == ".safetensors":
        raise UsageError(
            f"{path}: give the directory that holds it together with config.json and the tokenizer"
        )
    raise UsageError(
        f"{path}: not a checkpoint Tunan reads; give a Hugging Face directory, "
        "a .gguf file or a .pt/.pth/.bin state dict"
    )


def refuse_lfs_pointer(path: Path, start: bytes) -> None:
    """Raises `CheckFailedError` where a file's first bytes say that it only points into git LFS."""
    if start.startswith(LFS_POINTER_START):
        raise CheckFailedError(
            f"{path}: this is a git-lfs pointer, not the file itself; "
            f"run 'git lfs pull' in {path.parent}"
        )


def _refuse_dangling_links(path: Path) -> None:
    """Hugging Face's cache links weights to blobs, of which a clean-up may have taken some."""
    suffixes = (".safetensors", ".bin", ".json")
    for entry in sorted(path.iterdir()):
        if entry.is_symlink() and not entry.exists() and entry.name.endswith(suffixes):
            raise CheckFailedError(f"{entry}: leads to a file that is gone; fetch it again")


def _open_directory(path: Path) -> Source:
    from tunan.checkpoint.fp8 import dequantised
    from tunan.checkpoint.safetensors_source import open_safetensors
    from tunan.checkpoint.torch_source import open_shards

    names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    _refuse_dangling_links(path)
    if not names:
        raise UsageError(f"{path}: the directory is empty")
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        return dequantised(open_safetensors(path))
    if any(name.startswith("pytorch_model") and name.endswith((".bin", ".json")) for name in names):
        return dequantised(open_shards(path))
    single = [name for name in names if name.endswith((".gguf", *STATE_DICT_SUFFIXES))]
    if single:
        raise UsageError(
            f"{path}: no *.safetensors or pytorch_model*.bin here; "
            f"to convert {single[0]} give its own path"
        )
    raise UsageError(f"{path}: no weights here (*.safetensors, pytorch_model*.bin or *.gguf)")
