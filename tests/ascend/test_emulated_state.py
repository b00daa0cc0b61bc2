"""Processes that share a machine's devices see what the others have taken."""

from pathlib import Path
from typing import Any

import pytest

from tests.ascend.emulated import run_snippet

pytestmark = pytest.mark.ascend

# A second process on the same machine takes a GiB of its first device, and is ended.
SEEN = """
import os, subprocess, sys
holder = "import sys, torch, torch_npu;" \\
    "x = torch.empty(1 << 30, dtype=torch.uint8, device='npu:0'); print('held', flush=True);" \\
    "sys.stdin.read()"
GIB = 1 << 30
def free(device):
    torch.npu.set_device(device)
    return torch.npu.mem_get_info()[0] / GIB
def take(gib):
    try:
        torch.empty(int(gib * GIB), dtype=torch.uint8, device="npu:0")
        return "fine"
    except Exception as error:
        return type(error).__name__
def open_of(pid):
    files = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    return sorted(file for file in files if "davinci" in file)
seen = {}
with subprocess.Popen([sys.executable, "-c", holder], stdin=-1, stdout=-1, text=True) as other:
    assert other.stdout.readline() == "held\\n"
    seen |= {"held": free(0), "of the other": free(1), "too much": take(3.5)}
    seen["files"] = open_of(other.pid)
    other.kill()
print("RESULT", json.dumps(seen | {"after": free(0), "fits": take(3.5)}))
"""


def seen(folder: Path, state: Path | None) -> dict[str, Any]:
    result: dict[str, Any] = run_snippet(SEEN, folder, devices=2, state=state, seconds=90).result
    return result


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process sees of another one's on the machine that they share."""
    folder = tmp_path_factory.mktemp("shared")
    return seen(folder, folder / "machine") | {"folder": str(folder / "machine")}


def test_what_another_process_holds_is_missing(shared: dict[str, Any]) -> None:
    assert 2.9 < shared["held"] <= 3
    assert shared["of the other"] > 3.9
    assert shared["too much"] == "OutOfMemoryError"


def test_what_a_killed_process_held_is_there_again(shared: dict[str, Any]) -> None:
    assert shared["after"] > 3.9
    assert shared["fits"] == "fine"


def test_the_file_of_a_device_tells_who_has_it_open(shared: dict[str, Any]) -> None:
    assert shared["files"] == [f"{shared['folder']}/davinci0"]


def test_without_a_folder_each_process_has_the_memory_for_itself(tmp_path: Path) -> None:
    alone = seen(tmp_path, None)
    assert alone["held"] > 3.9
    assert alone["too much"] == "fine"
    assert alone["files"] == []
