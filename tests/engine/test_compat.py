"""The loader against both versions of vLLM: their sources, and 0.23's own Python run for real."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.engine.converted import convert
from tests.engine.names_of_vllm import problems
from tests.engine.vllm_023 import REQUIREMENT, sources
from tests.engine.vllm_process import run_in_vllm

# 0.23 has no MLA on a CPU; without it V2-Lite's expanded attention takes its place there.
FAMILIES = ("llama", "qwen2", "deepseek-v2-lite")


def installed() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


@pytest.fixture(scope="module")
def vllm_023(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = sources(tmp_path_factory.mktemp("vllm-0.23"))
    if found is None:
        pytest.skip(f"pip cannot fetch {REQUIREMENT} here")
    return found


def test_the_installed_vllm_has_every_name_and_parameter_in_use() -> None:
    assert problems(installed()) == []


def test_vllm_023_has_every_name_and_parameter_in_use(vllm_023: Path) -> None:
    assert problems(vllm_023) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "model_executor/model_loader/__init__.py",
            "def register_model_loader(",
            "def register_loader(",
            "vllm.model_executor.model_loader: no register_model_loader",
        ),
        (
            "model_executor/model_loader/base_loader.py",
            "def load_weights(self, model: nn.Module,",
            "def load_weights(self, module: nn.Module,",
            "BaseModelLoader.load_weights: ('self', 'module', 'model_config') instead of",
        ),
        (
            "model_executor/models/utils.py",
            "class PPMissingLayer(",
            "class AbsentLayer(",
            "vllm.model_executor.models.utils: no PPMissingLayer",
        ),
    ],
)
def test_a_change_upstream_is_found(
    tmp_path: Path, file: str, old: str, new: str, expected: str
) -> None:
    names = ("model_executor", "distributed", "config", "platforms", "logger.py")
    for name in names:
        source = installed() / "vllm" / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        (tmp_path / "vllm").mkdir(exist_ok=True)
        copy(source, tmp_path / "vllm" / name)
    changed = tmp_path / "vllm" / file
    text = changed.read_text(encoding="utf-8")
    assert old in text
    changed.write_text(text.replace(old, new), encoding="utf-8")
    assert any(expected in problem for problem in problems(tmp_path))


@pytest.mark.engine
def test_under_vllm_023_rank_blocks_give_what_its_default_loader_cuts(
    vllm_023: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[dict[str, Any]] = []
    for family in FAMILIES:
        model = str(convert(family, tmp_path, "--tensor-parallel-size", "2"))
        for load_format in ("auto", "tunan"):
            rank = {"model": model, "degree": 2, "rank": 1, "load_format": load_format}
            questions.append(rank | {"expect_vllm": "0.23.0"})
    monkeypatch.setenv("PYTHONPATH", str(vllm_023))
    monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    answers = run_in_vllm("tests.engine.one_rank:load_all", questions, tmp_path / "run")
    for default, ours in zip(answers[::2], answers[1::2], strict=True):
        assert ours["warnings"] == []
        assert ours["parameters"] == default["parameters"]
