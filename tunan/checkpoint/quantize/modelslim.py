"""`quant_model_description.json`: how Huawei's ModelSlim describes a quantised checkpoint.

Written where compressed-tensors has no words for what vllm-ascend does, which is an int8 cache.
The file takes the place of `quantization_config` in config.json: vllm-ascend 0.23
(`quantization/utils.py`, `detect_quantization_method`) looks for it only where config.json names
no method, and then reads every layer's type from it (`quantization/modelslim_config.py`).
"""

from collections.abc import Iterable

from tunan.checkpoint.architectures import layer_of
from tunan.checkpoint.plan import PlannedBlock
from tunan.checkpoint.quantize.kv_cache import is_cache_tensor

DESCRIPTION_FILE = "quant_model_description.json"
W8A8 = "W8A8_DYNAMIC"
PLAIN = "FLOAT"
CACHE = "C8"


def description(blocks: Iterable[PlannedBlock]) -> dict[str, str]:
    """Each tensor's type, as of the plain layout, and the cache's.

    A layer has the int8 cache if a key names its `k_proj.kv_cache_scale`; the tensors are stored
    under the names of the engine's own parameters, as its Llama and Qwen2 know no others.
    """
    entries = [entry for block in blocks if block.rank is None for entry in block.entries]
    quantised = any(entry.quantised for entry in entries)
    described = {"model_quant_type": W8A8 if quantised else PLAIN}
    layers: set[int | None] = set()
    for entry in entries:
        if is_cache_tensor(entry.name):
            layers.add(layer_of(entry.name))
            continue
        described[entry.name] = W8A8 if entry.quantised else PLAIN
    if layers:
        described["kv_cache_type"] = CACHE
    for layer in sorted(layer for layer in layers if layer is not None):
        for projection in ("k_proj", "v_proj"):
            prefix = f"model.layers.{layer}.self_attn.{projection}.kv_cache_"
            described[prefix + "scale"] = described[prefix + "offset"] = CACHE
    return described
