"""The second start of a real engine maps what the first one packed."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.cpu.quantised import quantise
from tests.engine.generation import prompts
from tests.engine.vllm_process import run_in_vllm
from tests.models import write_llama
from tunan.cli.main import main
from tunan.engine.cpu.sidecar import FOLDER

pytestmark = pytest.mark.engine

LAYERS = 3 * 4 + 1  # qkv, o, gate_up and down of three layers, and the head


def start(model: Path, scratch: Path, **arguments: Any) -> dict[str, Any]:
    question = {"model": str(model), "prompts": prompts()[:3], "arguments": arguments}
    answer: dict[str, Any] = run_in_vllm("tests.engine.cpu.runs:generate", question, scratch)
    return answer


def packed(answer: dict[str, Any]) -> str:
    """The end of the one line, "packed weights: N mapped, M made"."""
    return str(next(line for line in answer["log"] if "packed weights" in line)).rsplit(": ", 1)[-1]


def test_the_second_start_maps_what_the_first_packed_and_repairs_what_is_damaged(
    tmp_path: Path,
) -> None:
    source = write_llama(tmp_path / "source")
    model = quantise(source, tmp_path / "w8a8", "w8a8")
    first = start(model, tmp_path / "first")
    assert packed(first) == f"0 mapped, {LAYERS} made"

    second = start(model, tmp_path / "second")
    assert packed(second) == f"{LAYERS} mapped, 0 made"
    assert len(second["files"]) == LAYERS
    assert second["private_kb"] == 0

    damaged = next((model / FOLDER).rglob("*1.mlp.down_proj.bin"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    third = start(model, tmp_path / "third")
    assert packed(third) == f"{LAYERS - 1} mapped, 1 made"
    assert first["tokens"] == second["tokens"] == third["tokens"]


def test_a_converted_checkpoint_is_mapped_by_its_own_load_format_too(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    model = tmp_path / "w4a8"
    options = ["--quantize", "w4a8", "--no-report"]
    assert main(["convert", str(source), str(model), *options]) == 0
    first = start(model, tmp_path / "first", load_format="tunan")
    second = start(model, tmp_path / "second", load_format="tunan")
    assert packed(first).startswith("0 mapped")
    assert packed(second).endswith("mapped, 0 made")
    assert second["private_kb"] == 0
    assert first["tokens"] == second["tokens"]
