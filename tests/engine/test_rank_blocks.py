"""Parameters from rank blocks against those vLLM's default loader cuts out while loading."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.converted import convert
from tests.engine.vllm_process import run_in_vllm

FAMILIES = ("llama", "qwen2", "deepseek-v2-lite", "deepseek-v3", "deepseek-v3-mtp")
W8A8 = ("llama w8a8", "qwen2 w8a8")
DEGREE = 2

pytestmark = pytest.mark.engine

Loaded = dict[tuple[str, int, str], dict[str, Any]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """(family, rank, how) -> what was loaded; "plain" is a checkpoint without rank blocks."""
    scratch = tmp_path_factory.mktemp("ranks")
    keys, questions = [], []
    for family in FAMILIES + W8A8:
        name, _, scheme = family.partition(" ")
        options = ("--quantize", scheme, "--no-report") if scheme else ()
        place = scratch / (scheme or "unquantised")
        cut = convert(name, place / "cut", "--tensor-parallel-size", str(DEGREE), *options)
        plain = convert(name, place / "plain", *options)
        for rank in range(DEGREE):
            for how, model, load_format in (
                ("default", plain, "auto"),
                ("plain", plain, "tunan"),
                ("rank", cut, "tunan"),
            ):
                keys.append((family, rank, how))
                questions.append(
                    {
                        "model": str(model),
                        "degree": DEGREE,
                        "rank": rank,
                        "load_format": load_format,
                    }
                )
    answers = run_in_vllm("tests.engine.one_rank:load_all", questions, Path(scratch))
    return dict(zip(keys, answers, strict=True))


@pytest.mark.parametrize("rank", range(DEGREE))
@pytest.mark.parametrize("family", FAMILIES + W8A8)
def test_rank_blocks_are_bit_for_bit_what_vllm_cuts_while_loading(
    loaded: Loaded, family: str, rank: int
) -> None:
    own = loaded[family, rank, "rank"]
    assert own["warnings"] == []
    assert own["parameters"] == loaded[family, rank, "default"]["parameters"]


@pytest.mark.parametrize("family", FAMILIES + W8A8)
def test_plain_blocks_give_a_rank_the_same_parameters(loaded: Loaded, family: str) -> None:
    for rank in range(DEGREE):
        plain, default = (loaded[family, rank, how] for how in ("plain", "default"))
        assert plain["parameters"] == default["parameters"]


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_differ(loaded: Loaded, family: str) -> None:
    first, second = (loaded[family, rank, "rank"]["parameters"] for rank in range(DEGREE))
    assert first != second


@pytest.mark.parametrize("options", [(), ("--tensor-parallel-size", "1")], ids=["plain", "fused"])
@pytest.mark.parametrize("family", ["llama", "deepseek-v3-mtp"])
def test_a_pipeline_stage_loads_its_own_layers_only(
    family: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    model = str(convert(family, tmp_path, *options))
    stage = {"model": model, "degree": 1, "rank": 0, "stages": 2}
    questions = [
        stage | {"stage": number, "load_format": load_format}
        for number in range(2)
        for load_format in ("auto", "tunan")
    ]
    answers = run_in_vllm("tests.engine.one_rank:load_all", questions, tmp_path / "run")
    for default, ours in zip(answers[::2], answers[1::2], strict=True):
        assert ours["warnings"] == []
        assert ours["parameters"] == default["parameters"]
    assert answers[0]["parameters"].keys().isdisjoint(answers[2]["parameters"])
