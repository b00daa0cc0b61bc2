"""Runs a model whose modules `tunan.ops.replace` has exchanged: `replaced.py DIRECTORY`.

`DIRECTORY` holds a checkpoint, or only the configuration of a model that is then made at random.
The result is what `replace` says: the `operators` it put in, and which modules it `kept`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch_npu
from transformers import AutoConfig, AutoModelForCausalLM

from tunan.ops import replace


def main() -> None:
    directory = Path(sys.argv[1])
    options: dict[str, Any] = {"attn_implementation": "eager"}
    if any(directory.glob("*.safetensors")):
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **options)
    else:
        config = AutoConfig.from_pretrained(directory)
        model = AutoModelForCausalLM.from_config(config, **options)
    model.config._experts_implementation = "batched_mm"
    done = replace(model.eval(), "npu")
    with torch.no_grad():
        model.to("npu")(input_ids=torch.arange(3, 25).reshape(2, 11).to("npu"))
    torch_npu.npu.synchronize()
    said = {
        "operators": sorted({module.operator for module in done.replaced}),
        "kept": sorted({module.reason for module in done.kept}),
    }
    sys.stdout.write(f"RESULT {json.dumps(said)}\n")


if __name__ == "__main__":
    main()
