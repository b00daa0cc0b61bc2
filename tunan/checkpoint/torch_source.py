"""PyTorch pickles as a source: `pytorch_model*.bin` directories and single state dicts.

Files are read by `torch.load(weights_only=True, mmap=True)`: no code in them runs and
tensor data stays mapped. Files of the old format (before PyTorch 1.6, not a zip) cannot
be mapped; they are read whole, up to `LEGACY_LIMIT` in all.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tunan.checkpoint.companions import read_companions, read_config
from tunan.checkpoint.fingerprint import fingerprint
from tunan.checkpoint.mapped_file import release_pages
from tunan.checkpoint.safetensors_source import TORCH_DTYPES
from tunan.checkpoint.shard_index import check_agreement, read_index, shards_of
from tunan.checkpoint.source import LFS_POINTER_START, TensorInfo, refuse_lfs_pointer
from tunan.errors import CheckFailedError, UsageError

INDEX = "pytorch_model.bin.index.json"
ZIP_MAGIC = b"PK\x03\x04"
# They stay in anonymous memory, of which a conversion may take 1 GiB.
LEGACY_LIMIT = 512 << 20
WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
PREFIXES = ("module.", "_orig_mod.")
DTYPE_CODES = {dtype: code for code, dtype in TORCH_DTYPES.items()}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class TorchSource:
    """See `tunan.checkpoint.source.Source`; made by `open_shards` and `open_state_dict`."""

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        auxiliary: Mapping[str, bytes],
        files: list[Path],
    ) -> None:
        self.path = path
        self.config = config
        self.auxiliary = auxiliary
        self.tensors: dict[str, TensorInfo] = {}
        self._files = files
        self._loaded: dict[str, torch.Tensor] = {}
        self._mapped = {file for file in files if is_mappable(file)}
        _refuse_much_to_hold([file for file in files if file not in self._mapped])
        for file in files:
            self._load(file)
        self._drop_tied_head()

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop), a view of the mapped file where the tensor is contiguous."""
        tensor = self._loaded[name]
        return (tensor[start:stop] if tensor.dim() else tensor).contiguous()

    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return fingerprint(self._files)

    def release(self, name: str) -> None:
        """See `Source.release`. Tensors of old-format files stay."""
        tensor = self._loaded[name]
        if self.tensors[name].file in self._mapped and tensor.is_contiguous():
            release_pages(tensor.data_ptr(), tensor.nbytes)

    def _load(self, file: Path) -> None:
        for name, stored in read_state_dict(file).items():
            tensor = stored.detach()  # parameters were saved as such, gradients wanted
            if name in self.tensors:
                other = self.tensors[name].file.name
                raise CheckFailedError(f"{file}: tensor '{name}' is in {other} as well")
            self.tensors[name] = _info(file, name, tensor)
            self._loaded[name] = tensor

    def _drop_tied_head(self) -> None:
        """torch.save stores both names of a tied embedding; one tensor stands for both."""
        if not self.config.get("tie_word_embeddings") or not {EMBEDDING, HEAD} <= set(self.tensors):
            return
        embedding, head = self._loaded[EMBEDDING], self._loaded[HEAD]
        if embedding.data_ptr() == head.data_ptr() and embedding.shape == head.shape:
            del self.tensors[HEAD]


def open_shards(path: Path) -> TorchSource:
    """Opens a directory with `pytorch_model.bin`, or with shards and their index.

    Raises `CheckFailedError`, naming the file, where a shard is missing, damaged or
    carries code, or the index disagrees with the files.
    """
    config = read_config(path / "config.json")
    auxiliary = read_companions(path)
    index = path / INDEX
    if index.is_file():
        weights = read_index(index)
        source = TorchSource(path, config, auxiliary, shards_of(index, weights))
        stored = {name: info.file for name, info in source.tensors.items()}
        if HEAD in weights and HEAD not in stored and EMBEDDING in stored:
            weights = {name: file for name, file in weights.items() if name != HEAD}
        check_agreement(index, weights, stored.items())
        return source
    whole = path / "pytorch_model.bin"
    if not whole.is_file():
        raise CheckFailedError(f"{index}: missing; the shards beside it cannot be read without it")
    return TorchSource(path, config, auxiliary, [whole])


def open_state_dict(path: Path, config: Path | None = None) -> TorchSource:
    """Opens one state-dict file; config.json and the tokenizer lie beside it or beside `config`."""
    config_path = config or path.parent / "config.json"
    if not config_path.is_file():
        raise UsageError(
            f"{path}: a state dict does not describe its model; put its config.json "
            f"and tokenizer into {path.parent} or name a config.json elsewhere"
        )
    return TorchSource(path, read_config(config_path), read_companions(config_path.parent), [path])


def is_mappable(path: Path) -> bool:
    """Whether a file is of the format torch.save has written since PyTorch 1.6."""
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER_START))
    refuse_lfs_pointer(path, start)
    return start.startswith(ZIP_MAGIC)


def read_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file by name.

    One layer of wrapping (`{"state_dict": ...}`) and prefixes that all names share
    (`module.`) are taken off. Raises `CheckFailedError` for a file that is damaged,
    carries code or is no state dict.
    """
    return _unwrap(path, _load_weights(path))


def _refuse_much_to_hold(files: list[Path]) -> None:
    if sum(file.stat().st_size for file in files) > LEGACY_LIMIT:
        raise CheckFailedError(
            f"{files[0]}: in PyTorch's old format, which cannot be mapped, and above "
            f"{LEGACY_LIMIT >> 20} MiB; load it with torch.load(weights_only=True) "
            "and torch.save it again, or save it as safetensors"
        )


def _load_weights(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of pickles that it then refuses
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mappable(path))
    except pickle.UnpicklingError as error:
        if "Unsupported" in str(error) or "GLOBAL" in str(error) or "REDUCE" in str(error):
            raise CheckFailedError(
                f"{path}: a pickle that carries code, which Tunan does not run; "
                "get the model as safetensors"
            ) from error
        raise CheckFailedError(f"{path}: damaged pickle; fetch it again") from error
    except Exception as error:  # torch.load raises whatever a damaged file leads it to
        reason = f"{type(error).__name__}: {error}".partition("\n")[0].partition(". ")[0]
        raise CheckFailedError(
            f"{path}: truncated or damaged, or no PyTorch file ({reason}); fetch it again"
        ) from error


def _unwrap(path: Path, value: Any) -> dict[str, torch.Tensor]:
    for key in WRAPPERS:
        if isinstance(value, dict) and isinstance(value.get(key), dict):
            value = value[key]
            break
    tensors = (
        {name: item for name, item in value.items() if isinstance(item, torch.Tensor)}
        if isinstance(value, dict)
        else {}
    )
    if not tensors or not all(isinstance(name, str) for name in tensors):
        raise CheckFailedError(f"{path}: not a state dict: no tensors by name in it")
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): item for name, item in tensors.items()}
    return tensors


def _info(file: Path, name: str, tensor: torch.Tensor) -> TensorInfo:
    if not name.isprintable():
        raise CheckFailedError(f"{file}: a tensor name with control characters: {name!r}")
    where = f"{file}: tensor '{name}'"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise CheckFailedError(f"{where}: only plain dense tensors can be converted")
    code = DTYPE_CODES.get(tensor.dtype)
    if code is None:
        raise CheckFailedError(f"{where}: unknown dtype {tensor.dtype}")
    return TensorInfo(name, tuple(tensor.shape), code, tensor.nbytes, file)
