"""Generates greedily with vllm-ascend and tells which experts each token went to: `routed.py TASK`.

vLLM's own `enable_return_routed_experts` gives zeros here, so the choice is read where
vllm-ascend's 8-bit experts take it. The engine must run in this process.
"""

import json
import sys
from typing import Any

import torch
import vllm_ascend.quantization.methods.w8a8_dynamic as eight_bits
from vllm import LLM, SamplingParams

from tests.ascend.programs.generate import DEFAULTS

CHOSEN = 1  # select_experts returns weights and numbers of experts


def main() -> None:
    task = json.loads(sys.argv[1])
    engine = LLM(model=task["model"], **DEFAULTS | {"dtype": "bfloat16"})
    seen: list[torch.Tensor] = []
    select = eight_bits.select_experts

    def watched(*args: Any, **options: Any) -> Any:
        answer = select(*args, **options)
        seen.append(answer[CHOSEN].cpu())
        return answer

    eight_bits.select_experts = watched
    sampling = SamplingParams(temperature=0, ignore_eos=True, logprobs=5, max_tokens=task["tokens"])
    answers = []
    for prompt in task["prompts"]:
        seen.clear()
        (output,) = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        (sample,) = output.outputs
        layers = len(seen) // task["tokens"]
        answers.append(
            {
                "tokens": [list(sample.token_ids)],
                "logprobs": {k: v.logprob for k, v in sample.logprobs[0].items()},
                "experts": [torch.cat(seen[layer::layers]).tolist() for layer in range(layers)],
            }
        )
    sys.stdout.write(f"RESULT {json.dumps(answers)}\n")


if __name__ == "__main__":
    main()
