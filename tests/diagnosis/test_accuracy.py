"""Precision and recall over everything that is known, in noise. The figures that are published come
from benchmarks/diagnose.py, which measures the same."""

import pytest

from tests.diagnosis.accuracy import Accuracy, measure


@pytest.fixture(scope="module")
def accuracy() -> Accuracy:
    return measure()


def test_a_cause_that_is_named_is_the_right_one(accuracy: Accuracy) -> None:
    assert accuracy.precision >= 0.99, accuracy.wrong


def test_a_known_error_is_found_in_noise(accuracy: Accuracy) -> None:
    assert accuracy.recall >= 0.99, accuracy.wrong


def test_the_rank_that_failed_first_is_named(accuracy: Accuracy) -> None:
    # Lines without a process's name cannot be given to one.
    assert accuracy.first_rank_logs > 300
    assert accuracy.first_rank_right / accuracy.first_rank_logs >= 0.95
