"""The committed list of operators is what this torch_npu registers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ascend

ROOT = Path(__file__).parents[2]


def test_the_script_writes_the_committed_file_again(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "dump_npu_kernels.py"
    subprocess.run([sys.executable, script, "--libraries", "these", tmp_path], check=True)
    (written,) = tmp_path.glob("torch_npu-*.json")
    committed = ROOT / "tunan" / "ops" / "kernels" / written.name
    made, kept = (json.loads(file.read_text()) for file in (written, committed))
    for section in ("keys", "aten", "npu", "atb", "fallback"):
        assert made[section] == kept[section], section
