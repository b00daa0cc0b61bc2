"""Tensor parallelism with our linear kernels: two real ranks on one machine."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.cpu.quantised import quantise
from tests.engine.generation import prompts
from tests.engine.vllm_process import run_in_vllm
from tests.models import write_llama
from tunan.engine.cpu.sidecar import FOLDER
from tunan.engine.cpu.switch import VARIABLE

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_two_ranks_generate_what_vllms_own_kernels_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantise(write_llama(tmp_path / "source"), tmp_path / "w8a8", "w8a8")
    arguments = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    question = {"model": str(model), "prompts": prompts(), "arguments": arguments}
    answers: dict[str, Any] = {}
    for kernels in ("0", "linear"):
        monkeypatch.setenv(VARIABLE, kernels)
        answers[kernels] = run_in_vllm(
            "tests.engine.cpu.runs:generate", question, tmp_path / kernels
        )
    assert answers["linear"]["tokens"] == answers["0"]["tokens"]
    ranks = {path.parent.name for path in (model / FOLDER).rglob("*.bin")}
    assert ranks == {"tp-2-0", "tp-2-1"}
