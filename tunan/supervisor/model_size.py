"""How much memory a checkpoint needs, from its config.json and file sizes alone."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunan.checkpoint.manifest import MANIFEST_FILE, Manifest, rank_directory
from tunan.errors import CheckFailedError, UsageError

_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
_WEIGHTS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.gguf")


@dataclass(frozen=True)
class ModelSize:
    """`weights` in bytes on disk; `kv_bytes_per_token` over all layers; `max_len` in tokens.

    `dtype` is what a CPU computes in, `latent_attention` whether the model has MLA.
    """

    weights: int
    kv_bytes_per_token: int
    max_len: int
    has_manifest: bool
    dtype: str = "bfloat16"
    latent_attention: bool = False


def measure(directory: Path, dtype: str = "auto") -> ModelSize:
    """Reads what is there. Raises `UsageError` if `directory` is no checkpoint."""
    if not directory.exists():
        raise UsageError(f"{directory}: no such checkpoint; convert one with `tunan convert`")
    if not directory.is_dir():
        raise UsageError(
            f"{directory}: not a checkpoint directory; convert it with `tunan convert`"
        )
    config = _config(directory / "config.json")
    text = config.get("text_config", config)
    weights = _weights(directory)
    if not weights:
        raise UsageError(f"{directory}: no weights (*.safetensors) in it")
    stored = str(text.get("torch_dtype") or text.get("dtype") or config.get("dtype") or "bfloat16")
    element = _BYTES.get(stored if dtype == "auto" else dtype, 2)
    return ModelSize(
        weights=weights,
        kv_bytes_per_token=_kv_bytes_per_token(text, element),
        max_len=int(text.get("max_position_embeddings") or 2048),
        has_manifest=(directory / MANIFEST_FILE).is_file(),
        dtype=_computed_in(stored, dtype),
        latent_attention=bool(text.get("kv_lora_rank")),
    )


def _computed_in(stored: str, asked: str) -> str:
    """The dtype vLLM takes: what is asked for; for `auto` what is stored, float32 as bfloat16."""
    if asked != "auto":
        return asked
    return "bfloat16" if stored.startswith("float") and stored != "float16" else stored


def check_blocks(directory: Path, tensor_parallel_size: int) -> None:
    """Whether the blocks a converted checkpoint lists are there with their sizes.

    Raises `CheckFailedError` that names the first one that is not: the engine would find it only
    after a minute. Blocks cut for another number of ranks are not looked at.
    """
    if not (directory / MANIFEST_FILE).is_file():
        return
    for block in Manifest.read(directory).blocks:
        own = rank_directory(tensor_parallel_size, block.rank or 0) + "/"
        if block.rank is None or block.file.startswith(own):
            _check_size(directory / block.file, block.bytes)


def _check_size(path: Path, listed: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckFailedError(
            f"{path}: {MANIFEST_FILE} lists this block, but: {error.strerror}; "
            "fetch or convert it again"
        ) from None
    if size != listed:
        raise CheckFailedError(
            f"{path}: has {size} bytes, {MANIFEST_FILE} says {listed}; fetch or convert it again"
        )


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}; the directory must be a Hugging Face or Tunan checkpoint"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: not a JSON object")
    return config


def _weights(directory: Path) -> int:
    for pattern in _WEIGHTS:
        if sizes := [path.stat().st_size for path in directory.glob(pattern)]:
            return sum(sizes)
    return 0


def _kv_bytes_per_token(config: dict[str, Any], element: int) -> int:
    layers = int(config.get("num_hidden_layers") or 1)
    if rank := config.get("kv_lora_rank"):
        # Multi-head latent attention keeps one latent and one rotary key a token and layer.
        return layers * (int(rank) + int(config.get("qk_rope_head_dim") or 0)) * element
    heads = int(config.get("num_attention_heads") or 1)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head = int(config.get("head_dim") or int(config.get("hidden_size") or heads) // heads)
    return layers * 2 * kv_heads * head * element
