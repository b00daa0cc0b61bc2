from pathlib import Path

import pytest

from tests.engine.vllm_process import run_in_vllm

pytestmark = pytest.mark.engine


def test_vllm_finds_the_load_format_and_a_second_registration_does_nothing(tmp_path: Path) -> None:
    found = run_in_vllm("tests.engine.registration:register_again", None, tmp_path)
    assert found == {"loader": "LazyWeightLoader", "logged": []}


def test_a_vllm_without_a_part_is_only_warned_about(tmp_path: Path) -> None:
    logged = run_in_vllm("tests.engine.registration:register_without_a_part", None, tmp_path)
    assert len(logged) == 1
    assert "load format 'tunan' is not available: cannot import name" in logged[0]
