"""The torch operators: the same results, kept whole by torch.compile."""

import pytest
import torch

from tests.kernels.reference import weights
from tunan.errors import UsageError
from tunan.kernels import ops  # noqa: F401 (registers them)
from tunan.kernels.linear import linear


def test_the_operator_gives_what_the_function_gives() -> None:
    packed = weights("w4g64", 70, 256).pack()
    x, bias = torch.randn(3, 5, 256), torch.randn(70)
    result = torch.ops.tunan.linear(x, packed.data, bias, 70)
    assert torch.equal(result, linear(x, packed, bias))


def test_the_operator_obeys_torchs_rules_for_operators() -> None:
    packed = weights("w8", 70, 256).pack()
    for x in (torch.randn(4, 256), torch.randn(2, 3, 256).bfloat16()):
        torch.library.opcheck(torch.ops.tunan.linear, (x, packed.data, None, 70))


def test_a_compiled_model_keeps_the_operator_whole() -> None:
    packed = weights("w8", 70, 256).pack()

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.ops.tunan.linear(x * 2, packed.data, None, 70))

    x = torch.randn(4, 256)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), layer(x))


def test_a_wrong_number_of_outputs_is_refused() -> None:
    packed = weights("w8", 70, 256).pack()
    with pytest.raises(UsageError, match="70 outputs, not of 71"):
        torch.ops.tunan.linear(torch.randn(1, 256), packed.data, None, 71)
