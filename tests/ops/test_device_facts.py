"""The facts of the data files, and the names targets go by."""

import pytest
import torch

from tunan.errors import UsageError
from tunan.ops.device_facts import devices, kernel_dtypes, target_name
from tunan.ops.map import catalogue
from tunan.ops.registrations import Origin, registrations, versions


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("ascend910b", "ascend910b"),
        ("ascend910b3", "ascend910b"),
        ("910B4", "ascend910b"),
        ("Ascend910C", "ascend910c"),
        ("310P3", "ascend310p"),
    ],
)
def test_a_target_goes_by_its_family_or_its_chip(given: str, name: str) -> None:
    assert target_name(given) == name


@pytest.mark.parametrize("given", ["", "cpu", "ascend", "h100"])
def test_what_is_no_ascend_target_is_named_with_those_there_are(given: str) -> None:
    with pytest.raises(UsageError, match=r"known are ascend910b, ascend910b1, .*ascend910c"):
        target_name(given)


def test_the_ascend_targets_of_the_operator_map_are_all_known_here() -> None:
    assert set(catalogue().targets) - {"cpu"} <= set(devices().targets)


def test_every_figure_has_a_source() -> None:
    assert set(devices().sources) == {
        "lacks",
        "runs",
        "compressed_tensors",
        "link",
        "efficiency",
        "crossing_us",
        "host",
    }
    assert all(devices().sources.values())


@pytest.mark.parametrize("version", versions())
def test_dtypes_are_given_for_operators_that_have_a_kernel(version: str) -> None:
    known = registrations(version)
    names = {name.partition(".")[0] for name in known.aten if known.has_kernel(name)}
    for operator, dtypes in kernel_dtypes().items():
        base = operator.partition("::")[2]
        assert base in names or known.origin(operator) is Origin.KERNEL, operator
        assert all(isinstance(getattr(torch, dtype), torch.dtype) for dtype in dtypes)
