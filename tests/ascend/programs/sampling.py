"""Draws with our plugins from logits on the device and from the same on the host."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch_npu  # noqa: F401
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate

from tunan.engine.sampling.continued import ContinuedOutput
from tunan.engine.sampling.seeded import SeededSampling

ROWS, VOCABULARY = 6, 500
PARAMETERS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 20},
    {"top_p": 0.8},
    {"top_k": 50, "top_p": 0.9},
)
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.25}


def main() -> None:
    """Prints the tokens of each, and the largest difference that penalties make."""
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2
    host, device = torch.device("cpu"), torch.device("npu:0")
    result = {
        "host": [_drawn(logits, host, options) for options in PARAMETERS],
        "device": [_drawn(logits, device, options) for options in PARAMETERS],
        "penalties": float((_continued(logits, host) - _continued(logits, device)).abs().max()),
    }
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")


def _drawn(logits: torch.Tensor, device: torch.device, options: dict[str, Any]) -> list[int]:
    added: list[Any] = [
        (i, SamplingParams(extra_args={"tunan_seed": i}, **options), [1, 2, 3], [])
        for i in range(ROWS)
    ]
    config = SimpleNamespace(model_config=SimpleNamespace(logprobs_mode="raw_logprobs"))
    plugin = SeededSampling(config, device, False)
    plugin.update_state(BatchUpdate(ROWS, removed=[], added=added, moved=[]))
    tokens: list[int] = plugin.apply(logits.clone().to(device)).cpu().argmax(dim=-1).tolist()
    return tokens


def _continued(logits: torch.Tensor, device: torch.device) -> torch.Tensor:
    params = SamplingParams(extra_args={"tunan_prompt_tokens": 2}, **PENALTIES)
    plugin = ContinuedOutput(None, device, False)
    added = [(1, params, [1, 2, 7, 7, 9], [7, 30])]
    plugin.update_state(BatchUpdate(ROWS, removed=[], added=added, moved=[]))
    corrected: torch.Tensor = plugin.apply(logits.clone().to(device)).cpu()
    return corrected


if __name__ == "__main__":
    main()
