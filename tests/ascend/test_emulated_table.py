"""The operators that the emulator has are operators that this torch_npu calls."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.ascend

ROOT = Path(__file__).parents[2]
EMULATOR = ROOT / "emulator"


def load(name: str) -> ModuleType:
    path = EMULATOR / "generate" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"generate_{name}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load("operators")


@pytest.fixture(scope="module")
def coverage() -> dict[str, tuple[str, str]]:
    lines: dict[str, tuple[str, str]] = load("coverage").described(
        (EMULATOR / "coverage.txt").read_text()
    )
    return lines


def table(generator: ModuleType, text: str) -> list[str]:
    lines = generator.expand(generator.logical_lines(text))
    return [generator.parse(line).name for line in lines]


def test_torch_npu_names_every_operator_of_the_table(generator: ModuleType) -> None:
    spec = importlib.util.find_spec("torch_npu")
    assert spec
    assert spec.origin
    library = (Path(spec.origin).parent / "lib" / "libtorch_npu.so").read_bytes()
    called = {name.decode() for name in re.findall(rb"aclnn(\w+)\0", library)}
    described = table(generator, (EMULATOR / "operators.txt").read_text())
    assert [name for name in described if name not in called] == []
    assert len(described) > 200


def test_a_line_stands_for_many_operators(generator: ModuleType) -> None:
    text = "each Abs Neg=negative: $ self:Tensor out!:Tensor = aten::% self"
    assert table(generator, text) == ["Abs", "Neg"]


@pytest.mark.parametrize(
    "line",
    [
        "Abs self:Tensor out!:Tensor",
        "Abs self:Tensr out!:Tensor = aten::abs self",
        "Abs self:Tensor out!:Tensor = aten::abs other",
    ],
    ids=["no kernel", "no such type", "no such parameter"],
)
def test_a_line_that_cannot_be_is_refused(generator: ModuleType, line: str) -> None:
    with pytest.raises(SystemExit, match=re.escape("operators.txt")):
        table(generator, line)


def test_the_list_of_vllm_ascend_s_operators_is_what_its_sources_call() -> None:
    script = EMULATOR / "generate" / "coverage.py"
    subprocess.run([sys.executable, script, "--check"], check=True)


def test_what_is_said_to_run_is_in_the_table(
    generator: ModuleType, coverage: dict[str, tuple[str, str]]
) -> None:
    described = table(generator, (EMULATOR / "operators.txt").read_text())
    for operator, (state, what) in coverage.items():
        for name in re.findall(r"aclnn(\w+)", what):
            assert state in ("tested", "runs"), operator
            assert name in described, operator


def test_what_is_said_to_be_tested_is_named_in_a_test(
    coverage: dict[str, tuple[str, str]],
) -> None:
    tests = "\n".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    operators = "\n".join(file.read_text() for file in (ROOT / "tunan" / "ops").glob("*.py"))
    for operator, (state, what) in coverage.items():
        names = [operator.partition(".")[2], *re.findall(r"aclnn\w+", what)]
        if state == "tested":
            assert any(name in tests or name in operators for name in names), operator
