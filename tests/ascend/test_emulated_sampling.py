"""Our logits processors under vLLM 0.23 on the emulated device."""

from pathlib import Path

import pytest

from tests.ascend.emulated import PROGRAMS, run_emulated

pytestmark = [pytest.mark.ascend, pytest.mark.long]


def test_tokens_drawn_on_the_device_are_those_drawn_on_the_host(tmp_path: Path) -> None:
    found = run_emulated([str(PROGRAMS / "sampling.py")], tmp_path).result
    assert found["device"] == found["host"]
    assert found["penalties"] < 2e-6
