"""Tracing: what is recorded, where it is attributed, and what is left as it was."""

from typing import Any

import torch
from torch import nn

from tunan.ops.registrations import registrations
from tunan.ops.trace import Call, trace

META = torch.device("meta")


class Scores(nn.Module):
    """Uses operators that torch composes and torch_npu does whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(x @ x.transpose(-1, -2), dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(x, x, x)
        return weights @ mixed


def _calls(model: nn.Module, *inputs: torch.Tensor) -> list[Call]:
    traced, _ = trace(model, inputs, {}, registrations())
    return [call for call in traced.calls if not call.view and not call.by_parts]


def _names(calls: list[Call]) -> list[str]:
    return [call.operator for call in calls]


def test_what_torch_npu_does_whole_is_one_call() -> None:
    assert _names(_calls(Scores(), torch.empty(1, 2, 5, 8, device=META))) == [
        "aten::matmul",
        "aten::softmax.int",
        "aten::scaled_dot_product_attention",
        "aten::matmul",
    ]


def test_an_operator_without_a_kernel_is_listed_by_its_parts() -> Any:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(x > 0, 0.0)

    calls = _calls(Masked(), torch.empty(4, device=META))
    assert _names(calls) == ["aten::gt.Scalar", "aten::clone", "aten::masked_fill_.Scalar"]
    assert calls[1].parent == "aten::masked_fill.Scalar"


def test_a_call_knows_its_module_and_operands() -> None:
    model = nn.Sequential(nn.Linear(4, 6, device=META), nn.GELU())
    product, activation = _calls(model, torch.empty(2, 4, device=META))
    assert (product.operator, product.module, product.classes[0]) == ("aten::addmm", "0", "Linear")
    assert activation.module == "1"
    assert (activation.inputs[0].shape, activation.inputs[0].bytes) == ((2, 6), 48)


def test_views_move_no_data() -> Any:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.t()[1:].unsqueeze(0)

    traced, _ = trace(Turned(), (torch.empty(3, 3, device=META),), {}, registrations())
    assert all(call.view for call in traced.calls)


def test_data_dependent_models_are_traced_on_the_cpu() -> Any:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0] + 1

    assert "aten::index.Tensor" in _names(_calls(Chosen(), torch.tensor([1.0, -1.0])))


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model.train()
    _calls(model, torch.ones(1, 2))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
