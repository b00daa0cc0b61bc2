"""Two real ranks on one machine, from rank blocks, against one rank."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.converted import convert
from tests.engine.vllm_process import run_in_vllm

pytestmark = pytest.mark.engine

FAMILIES = ("llama", "deepseek-v3")


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_generate_what_one_does(family: str, tmp_path: Path) -> None:
    directory = convert(family, tmp_path, "--tensor-parallel-size", "2")

    def tokens(ranks: int) -> Any:
        question = {
            "model": str(directory),
            "dtype": "float32",
            "tensor_parallel_size": ranks,
            "distributed_executor_backend": "mp" if ranks > 1 else "uni",
        }
        return run_in_vllm(
            "tests.engine.generation:vllm_tokens", question, tmp_path / str(ranks), seconds=280
        )

    assert tokens(2) == tokens(1)
