"""Runs vLLM's QuickGELU and LayerNorm under vllm-ascend: no model of the tests' has them."""

import torch
import torch_npu  # noqa: F401
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import QuickGELU
from vllm.model_executor.layers.layernorm import LayerNorm
from vllm_ascend.utils import register_ascend_customop


def main() -> None:
    register_ascend_customop()
    with set_current_vllm_config(VllmConfig()), torch.inference_mode(), torch.device("npu"):
        x = torch.linspace(-3, 3, 512).reshape(4, 128)
        QuickGELU()(LayerNorm(128)(x))


if __name__ == "__main__":
    main()
