"""The lists of what torch_npu registers."""

import pytest

from tunan.errors import UsageError
from tunan.ops.registrations import DATA, Origin, registrations, versions

LARGEST_BYTES = 1_000_000


@pytest.mark.parametrize("version", versions())
def test_the_data_file_says_what_it_was_derived_from_and_is_small(version: str) -> None:
    assert version in registrations(version).derived_from
    assert (DATA / f"torch_npu-{version}.json").stat().st_size < LARGEST_BYTES


@pytest.mark.parametrize("version", versions())
@pytest.mark.parametrize(
    ("operator", "origin"),
    [
        ("aten::mm", Origin.KERNEL),
        ("aten::gelu", Origin.KERNEL),  # through gelu.out
        ("aten::argmax", Origin.KERNEL),
        ("aten::linear", Origin.COMPOSED),
        ("aten::_grouped_mm", Origin.COMPOSED),
        ("aten::special_i0e", Origin.CPU),
        ("npu::npu_rms_norm", Origin.KERNEL),
        ("mine::own", Origin.UNKNOWN),
    ],
)
def test_where_an_operators_kernel_comes_from(version: str, operator: str, origin: Origin) -> None:
    assert registrations(version).origin(operator) is origin


@pytest.mark.parametrize("version", versions())
def test_compositions_that_the_device_does_whole(version: str) -> None:
    known = registrations(version)
    assert known.replaces_composition("matmul") == "aten::matmul"
    assert known.replaces_composition("softmax") == "aten::softmax.int"
    assert known.replaces_composition("linear") is None
    assert known.replaces_composition("cat") is None


def test_a_version_without_a_file_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"torch_npu 1\.8; there are 2\.10"):
        registrations("1.8")


def test_replacements_call_operators_with_the_schemas_they_expect() -> None:
    schema = registrations().schema("npu::npu_rotary_mul")
    assert schema.startswith("npu::npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary")
