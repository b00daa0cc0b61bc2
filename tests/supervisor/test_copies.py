"""Copies of `parallel.data` are printed, not started."""

from pathlib import Path

import pytest

from tunan.config import deployment_from
from tunan.errors import UsageError
from tunan.supervisor.directories import Directories
from tunan.supervisor.launch import plan_launch
from tunan.supervisor.model_size import ModelSize

SIZE = ModelSize(weights=1, kv_bytes_per_token=1, max_len=16, has_manifest=False)


@pytest.mark.parametrize("target", ["cpu", "ascend910b3"])
def test_copies_are_not_started_from_here(target: str, tmp_path: Path) -> None:
    deployment = deployment_from(
        {"model": {"path": str(tmp_path)}, "parallel": {"tensor": 2, "data": 2}}, "test"
    )
    assert deployment.parallel.world_size == 4
    with pytest.raises(UsageError, match=r"parallel\.data: 2 copies .* --print-command"):
        plan_launch(deployment, target, SIZE, tmp_path, Directories.of_user())
