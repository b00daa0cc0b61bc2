"""`load_format="tunan"` under vLLM 0.23 and vllm-ascend, against vllm-ascend's own loading.

What is compared is the memory of the emulated devices itself, after vLLM has processed the
weights. What overlaps is read from the order of the trace's lines, not from times.
"""

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.ascend import loading
from tests.ascend.emulated import PROGRAMS, Outcome, run_emulated
from tests.ascend.loading import load, staged
from tests.engine.converted import convert, write_source
from tests.models import write_llama
from tunan.cli.main import main
from tunan.engine.staging import StagingOptions

pytestmark = pytest.mark.ascend

POOL_BYTES = StagingOptions().buffers * StagingOptions().buffer_bytes
MIB = 1 << 20


@pytest.fixture(scope="module")
def llama_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert("llama", tmp_path_factory.mktemp("blocks"), "--tensor-parallel-size", "1")


@pytest.fixture(scope="module")
def ours(llama_blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A device so slow that every copy is under way for much longer than filling a buffer takes."""
    scratch = tmp_path_factory.mktemp("ours")
    outcome = load(llama_blocks, "tunan", scratch, faults="slow:us=10000")
    assert "left aside" not in outcome.output + outcome.errors
    return outcome


@pytest.fixture(scope="module")
def stock(llama_blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    source = llama_blocks.with_name("llama-source")
    return load(source, "auto", tmp_path_factory.mktemp("stock"))


def test_the_device_holds_what_the_default_loader_leaves_there(
    ours: Outcome, stock: Outcome
) -> None:
    assert ours.result["parameters"] == stock.result["parameters"]
    assert ours.result["tokens"] == stock.result["tokens"]


def test_the_bytes_on_the_device_are_those_of_the_blocks(ours: Outcome, llama_blocks: Path) -> None:
    (found,) = ours.result["parameters"]
    expected = _hashes(llama_blocks / "tensor-parallel-1" / "rank-0")
    assert {name: found[name].split()[-1] for name in expected} == expected


def test_every_parameter_goes_from_pinned_memory_on_a_stream_of_its_own(
    ours: Outcome, llama_blocks: Path
) -> None:
    found = staged(ours.trace)
    assert {(copy.kind, copy.pinned) for copy in found} == {("host-to-device", True)}
    others = {copy.stream for copy in loading.copies(ours.trace)} - {found[0].stream}
    assert {copy.stream for copy in found}.isdisjoint(others)
    assert sum(copy.bytes for copy in found) == _data_bytes(llama_blocks / "tensor-parallel-1")


def test_the_next_buffer_is_filled_while_the_last_is_copied(ours: Outcome) -> None:
    found = staged(ours.trace)
    overlapping = sum(following.queued < copy.done for copy, following in pairwise(found))
    assert overlapping > len(found) / 2


def test_no_buffer_is_filled_again_before_its_copy_is_done(ours: Outcome) -> None:
    found = staged(ours.trace)
    sources = {copy.source for copy in found}
    assert len(sources) == StagingOptions().buffers
    for source in sources:
        for copy, following in pairwise(copy for copy in found if copy.source == source):
            assert copy.done < following.queued
            assert loading.waited_for(ours.trace, copy, following.queued)


def test_the_buffers_are_given_back(ours: Outcome) -> None:
    assert loading.freed_buffers(ours.trace) == StagingOptions().buffers


def test_host_memory_is_bounded_by_the_pool(tmp_path: Path) -> None:
    tensors = {str(n): torch.randint(0, 9, (40 * MIB,), dtype=torch.uint8) for n in range(12)}
    save_file(tensors, tmp_path / "block.safetensors")
    program = [str(PROGRAMS / "stage.py"), str(tmp_path / "block.safetensors")]
    outcome = run_emulated(program, tmp_path)
    told = outcome.result
    assert told["equal"]
    assert told["weights"] > 4 * POOL_BYTES
    assert POOL_BYTES <= loading.peak_of_pinned_bytes(outcome.trace) < POOL_BYTES + MIB
    # The emulated device's memory is anonymous memory of the process, the pinned buffers too.
    assert told["host_peak"] < told["weights"] + POOL_BYTES + 32 * MIB


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model four times the pool, with tensors larger than a buffer."""
    scratch = tmp_path_factory.mktemp("large")
    shape = {"hidden_size": 1024, "intermediate_size": 9216, "num_hidden_layers": 8}
    source = write_llama(scratch / "source", num_attention_heads=8, **shape)
    converted = scratch / "converted"
    assert main(["convert", str(source), str(converted), "--tensor-parallel-size", "1"]) == 0
    return converted


@pytest.mark.long
def test_memory_is_bounded_by_the_pool(large: Path, tmp_path: Path) -> None:
    outcome = load(large, "tunan", tmp_path)
    blocks = large / "tensor-parallel-1"
    weights, memory = _data_bytes(blocks), outcome.result["memory"]
    assert weights > 4 * POOL_BYTES
    (found,) = outcome.result["parameters"]
    expected = _hashes(blocks / "rank-0")
    assert {name: found[name].split()[-1] for name in expected} == expected
    pinned = loading.peak_of_pinned_bytes(outcome.trace)
    assert POOL_BYTES <= pinned < POOL_BYTES + MIB
    # The emulated device's memory is anonymous memory of this process, the pinned buffers too.
    assert memory["host_peak"] < weights + POOL_BYTES + 32 * MIB
    assert memory["device_peak"] < weights + 8 * MIB


PLACEMENTS = [
    ("llama", 2, False, "1"),
    ("llama", 1, False, "2"),
    ("qwen2", 1, False, "1"),
    ("qwen2", 2, False, "1"),
    ("deepseek-v2-lite", 1, False, "1"),
    ("deepseek-v2-lite", 2, False, "1"),
    ("deepseek-v2-lite", 2, True, "1"),
    ("deepseek-v3", 1, False, "1"),
    ("deepseek-v3", 2, False, "1"),
    ("llama w8a8", 1, False, "1"),
    ("deepseek-v2-lite w8a8", 2, False, "1"),
]


@pytest.mark.long
@pytest.mark.parametrize(("family", "ranks", "experts", "nz"), PLACEMENTS)
def test_every_rank_holds_what_the_default_loader_gives_it(
    family: str, ranks: int, experts: bool, nz: str, tmp_path: Path
) -> None:
    name, _, scheme = family.partition(" ")
    degree = ("--tensor-parallel-size", str(ranks))
    quantised = ("--quantize", scheme) if scheme else ()
    blocks = convert(name, tmp_path / "blocks", *degree, *quantised)
    # vllm-ascend has no quantisation of its own to compare with: it loads the same plain blocks.
    source = blocks if scheme else write_source(name, tmp_path / "source")
    engine: dict[str, Any] = {"devices": ranks, "enable_expert_parallel": experts, "nz": nz}
    ours = load(blocks, "tunan", tmp_path / "ours", **engine)
    stock = load(source, "auto", tmp_path / "stock", **engine)
    assert ours.result["parameters"] == stock.result["parameters"]
    assert ours.result["tokens"] == stock.result["tokens"]
    layouts = {
        told.split(" format ")[1].split()[0]
        for rank in ours.result["parameters"]
        for told in rank.values()
    }
    assert ("FRACTAL_NZ" in layouts) == (nz == "2" or bool(scheme))
    # Whole experts a rank are not what rank blocks hold: then the plain blocks are loaded.
    assert ("left aside" in ours.output + ours.errors) == experts


def _hashes(folder: Path) -> dict[str, str]:
    """sha256 of every tensor of a folder's blocks, by name."""
    hashes = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as block:
            for name in block.keys():  # noqa: SIM118
                content = block.get_tensor(name).contiguous().flatten().view(torch.uint8)
                hashes[name] = hashlib.sha256(content.numpy().tobytes()).hexdigest()
    return hashes


def _data_bytes(folder: Path) -> int:
    """The bytes of the tensors in all blocks below a folder."""
    total = 0
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        spans = [told["data_offsets"] for name, told in header.items() if name != "__metadata__"]
        total += max(stop for _, stop in spans)
    return total
