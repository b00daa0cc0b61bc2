"""A Llama checkpoint of real layer sizes, made shard by shard."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.tokenizer import write_tokenizer
from tunan.checkpoint.architectures import expected_tensors, layer_of

# DeepSeek-LLM-7B's sizes with grouped-query attention; only the number of layers is ours.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 102400,
}


def write_large_llama(directory: Path, layers: int) -> None:
    """Writes a checkpoint of 354 MB a layer and 1.7 GB of embedding and head, one shard a layer."""
    directory.mkdir(parents=True)
    config = CONFIG | {"num_hidden_layers": layers}
    (directory / "config.json").write_text(json.dumps(config))
    write_tokenizer(directory, config["vocab_size"])
    shards: dict[int | str, list[str]] = {}
    shapes = expected_tensors(config)
    for name in shapes:
        layer = layer_of(name)
        shards.setdefault(name if layer is None else layer, []).append(name)
    weight_map: dict[str, str] = {}
    generator = torch.Generator().manual_seed(0)
    for number, names in enumerate(shards.values(), start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _random(shapes[name], generator) for name in names}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator, dtype=torch.bfloat16)
    return values.mul_(shape[-1] ** -0.5)
