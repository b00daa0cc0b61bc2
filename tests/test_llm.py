"""`tunan.LLM` and `tunan.SamplingParams`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import write_llama
from tunan.errors import OutsideError, UsageError
from tunan.llm import LLM, SamplingParams

SCRIPT = """
import sys
from tunan import LLM, SamplingParams
assert "torch" not in sys.modules and "vllm" not in sys.modules

if __name__ == "__main__":
    llm = LLM(sys.argv[1], device="cpu", max_model_len=256, swap_space=4, enforce_eager=True)
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    (answer,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params)
    print("TOKENS", len(answer.outputs[0].token_ids))
"""


def test_importing_the_names_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys; from tunan import LLM, SamplingParams; "
        "sys.exit(bool({'torch', 'vllm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Importing vLLM uses parts of torch that torch calls deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sampling_params_are_vllms() -> None:
    import vllm

    params = SamplingParams(max_tokens=3, temperature=0)
    assert isinstance(params, vllm.SamplingParams)
    assert params.max_tokens == 3


def test_an_unknown_device_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="use 'cpu' or 'npu'"):
        LLM("/models/x", device="tpu")


def test_an_npu_that_is_not_there_is_an_outside_problem() -> None:
    with pytest.raises(OutsideError, match="lacks"):
        LLM("/models/x", device="npu")


def test_a_directory_that_is_no_checkpoint_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="no such checkpoint"):
        LLM("/no/such/model", device="cpu")


@pytest.mark.engine
def test_a_script_gets_its_tokens(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(model)], capture_output=True, text=True, check=False
    )
    assert "TOKENS 4" in done.stdout, done.stderr[-2000:]
    assert "swap_space is ignored" in done.stderr
