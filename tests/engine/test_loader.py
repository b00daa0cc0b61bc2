"""What the loader does with damaged checkpoints and unusual placements, inside real vLLM."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.converted import convert
from tests.engine.vllm_process import ENVIRONMENT, run_in_vllm
from tunan.supervisor.last_error import root_cause

pytestmark = pytest.mark.engine

FIRST, RANK_FIRST = "model-00001-of-00003.safetensors", "tensor-parallel-2/rank-1"


def flip_last_byte(file: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = next(iter(sorted(directory.glob(file))))
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    return damage


def remove(file: str) -> Callable[[Path], None]:
    return lambda directory: (directory / file).unlink()


def forget_part_of_a_rank(directory: Path) -> None:
    """Takes rank 1's embedding and head out of the manifest."""
    content = json.loads((directory / "tunan.json").read_text())
    content["blocks"] = [b for b in content["blocks"] if b["rank"] != 1 or b["layers"]]
    (directory / "tunan.json").write_text(json.dumps(content))


def nothing(_: Path) -> None:
    pass


def case(damage: Callable[[Path], None], degree: int = 1, **options: str) -> dict[str, Any]:
    return {"damage": damage, "degree": degree, "rank": degree - 1, "options": options}


CASES: dict[str, dict[str, Any]] = {
    "sound": case(nothing),
    "corrupt": case(flip_last_byte(FIRST)),
    "corrupt, header only": case(flip_last_byte(FIRST), verify="header"),
    "corrupt rank block": case(flip_last_byte(f"{RANK_FIRST}/*.safetensors"), degree=2),
    "missing": case(remove(FIRST)),
    "no manifest": case(remove("tunan.json")),
    "unknown option": case(nothing, verfy="full"),
    "rank blocks that do not fit": case(forget_part_of_a_rank, degree=2),
    "degree without rank blocks": case(nothing, degree=4),
    "sound rank": case(nothing, degree=2),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    scratch = tmp_path_factory.mktemp("loader")
    pristine = convert("llama", scratch / "pristine", "--tensor-parallel-size", "2")
    questions = []
    for number, described in enumerate(CASES.values()):
        directory = Path(shutil.copytree(pristine, scratch / str(number)))
        described["damage"](directory)
        asked = {key: described[key] for key in ("degree", "rank", "options")}
        questions.append(asked | {"model": str(directory), "load_format": "tunan"})
    found = run_in_vllm("tests.engine.one_rank:load_all", questions, scratch)
    return dict(zip(CASES, found, strict=True))


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("corrupt", f"{FIRST}: its content is not what tunan.json says (sha256)"),
        ("corrupt rank block", f"{RANK_FIRST}/model-00001"),
        ("missing", f"{FIRST}: this block is missing, though tunan.json lists it"),
        ("no manifest", "no tunan.json; give a directory written by 'tunan convert'"),
        ("unknown option", "unknown key 'verfy'; did you mean 'verify'?"),
    ],
)
def test_the_error_is_one_line_that_names_the_file(
    answers: dict[str, dict[str, Any]], which: str, message: str
) -> None:
    error = answers[which]["error"]
    assert message in error
    assert "\n" not in error


def test_a_sound_checkpoint_loads_without_a_warning(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["sound"]["warnings"] == answers["sound rank"]["warnings"] == []


def test_hashes_are_not_checked_when_only_headers_are_asked_for(
    answers: dict[str, dict[str, Any]],
) -> None:
    assert "error" not in answers["corrupt, header only"]


def test_rank_blocks_that_do_not_fit_give_way_to_the_plain_ones(
    answers: dict[str, dict[str, Any]],
) -> None:
    fallback = answers["rank blocks that do not fit"]
    assert fallback["parameters"] == answers["sound rank"]["parameters"]
    assert "left aside, they have no model.embed_tokens.weight" in fallback["warnings"][0]


def test_a_degree_without_rank_blocks_loads_the_plain_ones(
    answers: dict[str, dict[str, Any]],
) -> None:
    alone = answers["degree without rank blocks"]
    assert alone["warnings"] == []
    assert alone["parameters"].keys() == answers["sound"]["parameters"].keys()


def test_a_corrupt_block_is_the_cause_shown_when_the_engine_dies(tmp_path: Path) -> None:
    directory = convert("llama", tmp_path)
    flip_last_byte(FIRST)(directory)
    command = [sys.executable, "-m", "tunan.engine.launcher", f"--model={directory}"]
    command += ["--load-format=tunan", "--enforce-eager", "--kv-cache-memory-bytes=67108864"]
    done = subprocess.run(
        [*command, "--max-model-len=256", f"--uds={tmp_path / 's'}"],
        env=os.environ | ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert root_cause((done.stdout + done.stderr).splitlines()) == (
        f"{directory / FIRST}: its content is not what tunan.json says (sha256); "
        "the block is corrupt, fetch or convert it again"
    )


def test_progress_is_told_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = convert("llama", tmp_path)
    address = tmp_path / "progress"
    monkeypatch.setenv("TUNAN_PROGRESS_SOCKET", str(address))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        question = {"model": str(directory), "degree": 1, "rank": 0, "load_format": "tunan"}
        run_in_vllm("tests.engine.one_rank:load", question, tmp_path / "run")
        heard = [json.loads(listener.recv(4096)) for _ in range(4)]
    assert [(m["done"], m["total"]) for m in heard] == [(n, 3) for n in range(4)]
