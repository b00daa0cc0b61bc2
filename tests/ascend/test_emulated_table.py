"""The operators that the emulator has are operators that this torch_npu calls."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.ascend

EMULATOR = Path(__file__).parents[2] / "emulator"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_operators", EMULATOR / "generate" / "operators.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
