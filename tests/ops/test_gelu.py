"""GELU in its three forms, and how far the quick one is from the exact one."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from tunan.ops import gelu

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("form", ["exact", "tanh", "quick"])
def test_the_cpu_backend_agrees_with_the_reference(dtype: torch.dtype, form: gelu.Form) -> None:
    x = torch.linspace(-8, 8, 4001).to(dtype)
    torch.testing.assert_close(
        gelu.cpu(x, form), gelu.reference(x, form), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("gelu", "exact"),
        ("gelu_new", "tanh"),
        ("gelu_pytorch_tanh", "tanh"),
        ("gelu_fast", "tanh"),
        ("quick_gelu", "quick"),
    ],
)
def test_transformers_activations_keep_their_form(name: str, form: gelu.Form) -> None:
    replaced = gelu.replacement(ACT2FN[name], "reference")
    assert isinstance(replaced, gelu.GELU)
    assert replaced.form == form
    x = torch.linspace(-6, 6, 999)
    torch.testing.assert_close(replaced(x), ACT2FN[name](x), rtol=1e-5, atol=1e-6)


def test_the_quick_form_errs_by_the_stated_amount() -> None:
    x = torch.linspace(-10, 10, 200_001, dtype=torch.float32)
    error = (gelu.reference(x, "quick") - gelu.reference(x, "exact")).abs()
    assert 0.0200 < float(error.max()) <= 0.0204
    assert 2.1 < abs(float(x[error.argmax()])) < 2.4


def test_fast_is_a_choice_and_never_the_default() -> None:
    exact, fast = gelu.replacement(nn.GELU(), "cpu"), gelu.replacement(nn.GELU(), "cpu", fast=True)
    assert isinstance(exact, gelu.GELU)
    assert isinstance(fast, gelu.GELU)
    assert (exact.form, fast.form) == ("exact", "quick")


def test_an_activation_nobody_knows_is_none_of_its_business() -> None:
    assert gelu.replacement(ACT2FN["gelu_10"], "cpu") is None
