"""A real engine goes on with answers that were cut, its plugins found as vLLM finds them."""

from typing import Any

import pytest

from tests.engine.sampling.resume import CUTS, REQUESTS
from tests.engine.vllm_process import run_in_vllm
from tests.models import write_llama

pytestmark = pytest.mark.engine

RESUMABLE = [name for name in REQUESTS if name != "vllm's seed"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("resume")
    model = write_llama(folder / "model")
    question = {"model": str(model)}
    return run_in_vllm("tests.engine.sampling.resume:continue_all", question, folder / "run")


@pytest.mark.parametrize("request_kind", RESUMABLE)
def test_an_answer_goes_on_with_the_same_tokens_from_every_cut(
    found: Any, request_kind: str
) -> None:
    assert found["changed"][request_kind] == []


def test_vllms_own_seed_does_not_go_on_from_a_cut(found: Any) -> None:
    assert found["changed"]["vllm's seed"] == list(CUTS)


def test_a_seed_gives_the_same_answer_again(found: Any) -> None:
    assert found["again"] == found["answers"]["plain"]


def test_seeds_give_different_answers(found: Any) -> None:
    answers = {tuple(answer) for answer in found["answers"].values()}
    assert len(answers) == len(REQUESTS)
