"""`cpu_fallback`: values, devices, strides, writing back, and what it counts."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.ops.fake_device import DEVICE, FakeDevice, FakeDeviceTensor
from tunan.errors import UsageError
from tunan.ops import cpu_fallback
from tunan.ops.fallback import registered


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with FakeDevice():  # type: ignore[no-untyped-call]
        yield


def _register_again() -> None:
    with registered(torch.ops.tunan_test.lacking.default):
        pass


def _only_on_cpu(*tensors: torch.Tensor) -> None:
    assert all(type(tensor) is torch.Tensor for tensor in tensors)


def _on_device(*shape: int) -> FakeDeviceTensor:
    return FakeDeviceTensor(torch.arange(float(torch.Size(shape).numel())).reshape(shape))


def test_the_operator_gets_cpu_tensors_and_the_result_goes_back() -> Any:
    def double(x: torch.Tensor) -> torch.Tensor:
        _only_on_cpu(x)
        return 2 * x

    x = _on_device(2, 3)
    result = cpu_fallback(double)(x)
    assert isinstance(result, FakeDeviceTensor)
    assert torch.equal(result.raw, 2 * x.raw)


def test_tensors_in_lists_and_keywords_are_moved_too() -> Any:
    def total(parts: list[torch.Tensor], *, more: dict[str, torch.Tensor]) -> torch.Tensor:
        _only_on_cpu(*parts, *more.values())
        return sum(parts, torch.zeros(())) + sum(more.values(), torch.zeros(()))

    x = _on_device(2)
    result = cpu_fallback(total)([x, x], more={"y": x})
    assert torch.equal(result.raw, 3 * x.raw)


def test_strides_and_dtype_survive_the_way_back() -> None:
    transpose = cpu_fallback(lambda x: x.to(torch.float16).clone().t())
    result = transpose(_on_device(2, 3))
    assert (result.stride(), result.dtype) == ((1, 3), torch.float16)


def test_a_tensor_changed_in_place_is_written_back_and_is_the_callers_own() -> None:
    x = _on_device(3)
    result = cpu_fallback(lambda t: t.add_(1))(x)
    assert result is x
    assert x.raw.tolist() == [1.0, 2.0, 3.0]


def test_writing_back_works_in_inference_mode() -> None:
    x = _on_device(3)
    with torch.inference_mode():
        cpu_fallback(lambda t: t.mul_(2))(x)
    assert x.raw.tolist() == [0.0, 2.0, 4.0]


def test_calls_and_bytes_are_counted_and_the_first_call_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrapped = cpu_fallback(torch.cumsum, name="cumsum")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            wrapped(_on_device(4), dim=0)
    assert (wrapped.traffic.calls, wrapped.traffic.to_cpu_bytes) == (3, 48)
    assert wrapped.traffic.to_device_bytes == 48
    assert [record.message for record in caplog.records] == [
        f"cumsum runs on the CPU: its tensors are copied from {DEVICE} and back at every call"
    ]


def _to_columns(x: torch.Tensor) -> torch.Tensor:
    return x.t_()


def _longer(x: torch.Tensor) -> torch.Tensor:
    return x.resize_(9, 9)


def _one(x: torch.Tensor) -> torch.Tensor:
    return x.resize_(1)


@pytest.mark.parametrize("operator", [_to_columns, _longer, _one])
def test_an_argument_that_is_resized_in_place_is_refused_and_kept(operator: Any) -> None:
    def both(first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        first.add_(1)
        resized: torch.Tensor = operator(x)
        return resized

    first, x = _on_device(2), _on_device(2, 3)
    with pytest.raises(UsageError, match=r"both changes an argument in place from \[2, 3\]"):
        cpu_fallback(both)(first, x)
    assert first.raw.tolist() == [0.0, 1.0]
    assert x.raw.shape == (2, 3)


def test_what_cannot_be_called_is_named() -> None:
    with pytest.raises(UsageError, match="wraps an operator or a function, not int"):
        cpu_fallback(3)  # type: ignore[arg-type]


def test_only_an_overload_can_be_registered() -> None:
    with pytest.raises(UsageError, match="takes an overload"), registered(torch.sin):  # type: ignore[arg-type]
        pass


def test_on_the_cpu_it_is_the_operator_itself() -> None:
    wrapped = cpu_fallback(torch.sin)
    x = torch.ones(2)
    assert torch.equal(wrapped(x), torch.sin(x))
    assert wrapped.traffic.calls == 0


def test_results_ask_for_no_gradients() -> None:
    weight = torch.ones(2, requires_grad=True)
    result = cpu_fallback(lambda x, w: x * w)(_on_device(2), weight)
    assert not result.requires_grad


def test_it_works_in_the_middle_of_a_model() -> Any:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values: torch.Tensor = wrapped(x)
            return values + 1

    def rank(x: torch.Tensor) -> torch.Tensor:
        _only_on_cpu(x)
        return x.sort(descending=True).values

    wrapped = cpu_fallback(rank)
    assert Sorted()(_on_device(3)).raw.tolist() == [3.0, 2.0, 1.0]


def test_a_registered_operator_has_a_device_kernel_only_within() -> Any:
    library = torch.library.Library("tunan_test", "DEF")  # type: ignore[no-untyped-call]
    library.define("lacking(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    library.impl("lacking", torch.neg, "CPU")  # type: ignore[no-untyped-call]

    def has_kernel() -> Any:
        return torch._C._dispatch_has_kernel_for_dispatch_key("tunan_test::lacking", "PrivateUse1")

    with registered(torch.ops.tunan_test.lacking.default) as wrapped:
        assert has_kernel()
        assert wrapped(_on_device(2)).raw.tolist() == [0.0, -1.0]
        with pytest.raises(UsageError, match="has a kernel for the device"):
            _register_again()
    assert not has_kernel()
    library._destroy()  # type: ignore[no-untyped-call]
