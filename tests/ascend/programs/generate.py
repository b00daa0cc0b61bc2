"""Generates with vLLM on the device: `generate.py TASK`, as tests/ascend/emulated.py makes it."""

import json
import sys
from typing import Any

from vllm import LLM, SamplingParams

DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "gpu_memory_utilization": 0.3,
    "block_size": 128,
    "seed": 0,
}


def main() -> None:
    task = json.loads(sys.argv[1])
    engine = LLM(model=task["model"], **DEFAULTS | task["engine"])
    answers = []
    for request in task["requests"]:
        prompt = {"prompt_token_ids": request.pop("prompt")}
        if "logit_bias" in request:  # JSON has no integers for keys
            request["logit_bias"] = {int(k): v for k, v in request["logit_bias"].items()}
        if "bad_tokens" in request:
            decode = engine.get_tokenizer().decode
            request["bad_words"] = [decode([token]) for token in request.pop("bad_tokens")]
        (output,) = engine.generate([prompt], SamplingParams(**request), use_tqdm=False)
        first = output.outputs[0].logprobs
        answers.append(
            {
                "tokens": [list(sample.token_ids) for sample in output.outputs],
                "cached": output.num_cached_tokens,
                "logprobs": {k: v.logprob for k, v in first[0].items()} if first else None,
                "prompt_logprobs": [
                    {k: v.logprob for k, v in one.items()}
                    for one in (output.prompt_logprobs or [])[1:]
                ],
            }
        )
    sys.stdout.write(f"RESULT {json.dumps(answers)}\n")


if __name__ == "__main__":
    main()
