"""Counts where vLLM, loaded by Tunan, and transformers generate different tokens.

    python -m benchmarks.parity            every family and the sample model; 6 minutes

Greedy, 64 tokens after each prompt (given as token ids), in float32 and bfloat16. In
bfloat16 the two add in another order, so a choice between two tokens whose logits are a
few roundings apart may fall either way: each divergence is given with that gap, taken
from transformers' logits, in standard deviations of the logits and in steps of bfloat16
at their size. Writes benchmarks/results/parity.json.
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.machine import describe_machine
from tests.engine.converted import convert, convert_sample
from tests.engine.vllm_process import run_in_vllm

RESULTS = Path(__file__).with_name("results") / "parity.json"
FAMILIES = (
    "llama",
    "qwen2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3-fp8",
    "deepseek-v3-mtp",
)


def main() -> None:
    """Converts every model, compares in both precisions, writes the results."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        models = {name: str(convert(name, scratch)) for name in FAMILIES}
        if sample := convert_sample(scratch):
            models["sample"] = str(sample)
        found = {}
        for dtype in ("float32", "bfloat16"):
            question = {"models": models, "real": ["sample"], "dtype": dtype}
            by_model = run_in_vllm(
                "tests.engine.generation:compare_all", question, scratch / dtype, seconds=900
            )
            found[dtype] = {name: _summary(prompts) for name, prompts in by_model.items()}
    result = {"machine": machine, "models": found}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def _summary(prompts: list[dict[str, float] | None]) -> dict[str, object]:
    divergences = [prompt for prompt in prompts if prompt is not None]
    return {"prompts": len(prompts), "same": prompts.count(None), "divergences": divergences}


if __name__ == "__main__":
    main()
