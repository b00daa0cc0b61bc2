"""Our plugins inside vLLM's own sampler, over made-up logits: 0.32 and 0.23, without an engine."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.vllm_023 import REQUIREMENT, sources
from tests.engine.vllm_process import run_in_vllm

pytestmark = pytest.mark.engine

# Every draw is fixed by its seed: a p below this is not bad luck, it is the same every time.
UNLIKELY = 1e-3


@pytest.fixture(scope="module", params=["installed", pytest.param("0.23", marks=pytest.mark.long)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each check's outcome in one version of vLLM."""
    scratch: Path = tmp_path_factory.mktemp("vllm")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "0.23":
            tree = sources(scratch)
            if tree is None:
                pytest.skip(f"pip cannot fetch {REQUIREMENT} here")
            patch.setenv("PYTHONPATH", str(tree))
        patch.setenv("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than all the draws
        outcome = run_in_vllm("tests.engine.sampling.in_vllm:report", None, scratch / "run")
    assert outcome["version"] == {"installed": "0.32.0", "0.23": "0.23.0"}[request.param]
    return outcome


@pytest.mark.parametrize(
    "parameters", ["plain", "temperature", "top_k", "top_p", "min_p", "penalties", "all"]
)
def test_tokens_are_drawn_from_exactly_vllms_distribution(found: Any, parameters: str) -> None:
    assert found["distribution"][parameters] > UNLIKELY


def test_vllms_own_draws_pass_the_same_test(found: Any) -> None:
    assert found["vllm_distribution"] > UNLIKELY


def test_the_test_finds_a_temperature_that_is_wrong_by_a_tenth(found: Any) -> None:
    assert found["wrong_temperature"] < UNLIKELY


def test_neighbouring_seeds_draw_from_the_distribution_too(found: Any) -> None:
    assert found["seeds_of_one_position"] > UNLIKELY


@pytest.mark.parametrize("of", ["positions", "seeds"])
def test_a_draw_tells_nothing_of_the_next(found: Any, of: str) -> None:
    assert found["neighbours"][of] > UNLIKELY


def test_vllms_operator_draws_what_our_arithmetic_does(found: Any) -> None:
    expected = {"there": True, "differ": 0} if found["version"] == "0.32.0" else {"there": False}
    assert found["operator"] == expected


def test_a_draw_depends_on_neither_the_batch_nor_the_place_in_it(found: Any) -> None:
    assert found["places"]


def test_a_draw_does_not_depend_on_where_the_prompt_ends(found: Any) -> None:
    assert found["cuts"]


def test_a_greedy_request_takes_the_best_token_whatever_its_seed(found: Any) -> None:
    assert found["greedy"]


def test_requests_without_our_seed_are_drawn_by_vllm(found: Any) -> None:
    assert found["unseeded"] > UNLIKELY


def test_requests_that_leave_move_and_swap_keep_their_seeds(found: Any) -> None:
    assert found["moves"]


def test_logprobs_are_the_models_own(found: Any) -> None:
    assert found["logprobs"]


def test_where_vllm_returns_what_it_drew_from_drawing_is_left_to_it(found: Any) -> None:
    assert found["processed_logprobs"]


def test_parameters_that_cannot_be_meant_are_refused(found: Any) -> None:
    assert found["refusals"] == [
        "tunan_seed must be an integer of 64 bits, not '7'",
        "tunan_seed must be an integer of 64 bits, not 9223372036854775808",
        "tunan_seed draws the same answer n times; use seed with n > 1",
        "tunan_prompt_tokens must be a count of tokens, not -1",
        "tunan_prompt_tokens must be a count of tokens, not 1.5",
    ]


@pytest.mark.parametrize(
    "kind", ["frequency", "presence", "negative", "repetition", "all", "below 1"]
)
def test_penalties_see_the_tokens_before_a_cut(found: Any, kind: str) -> None:
    assert found["penalties"][kind] == [0, 0]


def test_without_the_plugin_penalties_change_the_answer_after_a_cut(found: Any) -> None:
    assert found["penalties"]["unaware"] != [0]


def test_a_cut_changes_penalised_logits_by_rounding_at_most(found: Any) -> None:
    assert max(found["rounding"].values()) < 2e-6


def test_a_bad_word_that_began_before_the_cut_is_ruled_out(found: Any) -> None:
    assert found["bad_words"] == [13, 12]
