"""Packed weights: sizes, what is refused, and reading them from a mapping."""

import mmap
from pathlib import Path

import pytest
import torch

from tests.kernels.reference import FORMS, weights
from tunan import kernels
from tunan.errors import CheckFailedError, UsageError
from tunan.kernels.linear import (
    PackedLinear,
    layout_key,
    linear,
    pack_grouped_w8,
    pack_w4,
    pack_w8,
    packed_bytes,
    read_packed,
)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
@pytest.mark.parametrize("form", FORMS)
def test_packed_weights_work_from_a_read_only_mapping(form: str, isa: str, tmp_path: Path) -> None:
    packed = weights(form, 50, 200).pack()
    path = tmp_path / layout_key()
    path.write_bytes(packed.data.numpy().tobytes())
    x = torch.randn(3, 200)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    data = torch.frombuffer(mapped, dtype=torch.uint8)
    reread = read_packed(data)
    assert (reread.outputs, reread.inputs) == (50, 200)
    assert (reread.bits, reread.group) == (packed.bits, packed.group)
    assert torch.equal(linear(x, reread), linear(x, packed))


def test_packing_into_memory_of_the_callers_writes_what_a_new_tensor_gets() -> None:
    layer = weights("w4g32z", 50, 200)
    size = packed_bytes(50, 200, bits=4, group=32, zeros=True)
    target = torch.full((size,), 0xEE, dtype=torch.uint8)
    assert layer.pack(target).data is target
    assert torch.equal(target, layer.pack().data)


def test_packed_weights_take_little_more_than_their_bits() -> None:
    assert packed_bytes(2048, 5632) == 128 + 2048 * 4 + 2048 * 5632
    half = packed_bytes(2048, 5632, bits=4, group=128, scale_dtype=torch.float16)
    assert half == 128 + 2048 * 5632 // 2 + 2048 * (5632 // 128) * 2


def test_instruction_sets_of_one_layout_share_packed_weights() -> None:
    packed_by_key: dict[str, torch.Tensor] = {}
    for isa in kernels.supported_isas():
        kernels.select_isa(isa)
        data = weights("w8", 50, 200).pack().data
        assert torch.equal(packed_by_key.setdefault(layout_key(), data), data)
    kernels.select_isa(None)


def test_weights_of_another_layout_are_refused() -> None:
    packed = weights("w8", 50, 200).pack()
    key = layout_key()
    for isa in kernels.supported_isas():
        kernels.select_isa(isa)
        if layout_key() != key:
            with pytest.raises(CheckFailedError, match="pack again"):
                linear(torch.randn(1, 200), packed)
    kernels.select_isa(None)


def test_weights_of_another_version_are_refused() -> None:
    data = weights("w8", 50, 200).pack().data
    data[8] += 1
    with pytest.raises(CheckFailedError, match="pack again"):
        read_packed(data)


def test_other_bytes_are_refused() -> None:
    with pytest.raises(CheckFailedError, match="no packed weights"):
        read_packed(torch.zeros(4096, dtype=torch.uint8))
    with pytest.raises(CheckFailedError, match="too few"):
        read_packed(torch.zeros(64, dtype=torch.uint8))


# Offsets in the header: bits, group, scale_type, has_zeros; outputs, inputs, bytes.
@pytest.mark.parametrize("at", [16, 20, 24, 28, 32, 40, 48])
@pytest.mark.parametrize("value", [1 << 30, -1], ids=["too large", "negative"])
def test_a_header_that_contradicts_itself_is_refused(at: int, value: int) -> None:
    data = weights("w8", 50, 200).pack().data
    kind = torch.int32 if at < 32 else torch.int64
    number = torch.tensor([value], dtype=kind).view(torch.uint8)
    data[at : at + number.numel()] = number
    with pytest.raises(CheckFailedError, match="contradicts itself: pack again"):
        read_packed(data)
    packed = PackedLinear(data, 50, 200, 8, 0)
    with pytest.raises(CheckFailedError, match="contradicts itself: pack again"):
        linear(torch.randn(1, 200), packed)


def test_packed_weights_that_are_cut_off_are_refused() -> None:
    data = weights("w8", 50, 200).pack().data
    with pytest.raises(CheckFailedError, match="cut off"):
        read_packed(data[:-1])


def test_packed_weights_at_an_odd_address_are_refused() -> None:
    data = weights("w8", 50, 200).pack().data
    moved = torch.empty(data.numel() + 1, dtype=torch.uint8)[1:]
    moved.copy_(data)
    with pytest.raises(CheckFailedError, match="multiple of 64"):
        read_packed(moved)


def test_a_target_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="are needed"):
        weights("w8", 50, 200).pack(torch.empty(1000, dtype=torch.uint8))


def test_weights_that_do_not_fit_their_form_are_refused() -> None:
    int8 = torch.zeros(4, 64, dtype=torch.int8)
    scale = torch.ones(4, 2)
    with pytest.raises(UsageError, match="int8 is needed"):
        pack_w8(torch.zeros(4, 64), torch.ones(4))
    with pytest.raises(UsageError, match="32, 64 or 128"):
        pack_grouped_w8(int8, scale, 16)
    with pytest.raises(UsageError, match="have to be 4 x 2"):
        pack_w4(int8, torch.ones(4, 1), 32)
    with pytest.raises(UsageError, match="do not fit 4 bits"):
        pack_w4(int8 + 8, scale, 32)
    with pytest.raises(UsageError, match="zero points"):
        pack_w4(int8.to(torch.uint8), scale, 32, torch.full((4, 2), 16, dtype=torch.uint8))
    with pytest.raises(UsageError, match="at most 131072 inputs"):
        packed_bytes(1, 131073)


def test_activations_and_results_that_do_not_fit_are_refused() -> None:
    packed = weights("w8", 50, 200).pack()
    with pytest.raises(UsageError, match=r"\[\.\.\., 200\]"):
        linear(torch.randn(1, 199), packed)
    with pytest.raises(UsageError, match="activations"):
        linear(torch.ones(1, 200, dtype=torch.float64), packed)
    with pytest.raises(UsageError, match="bias"):
        linear(torch.randn(1, 200), packed, torch.randn(49))
    with pytest.raises(UsageError, match="result"):
        linear(torch.randn(2, 200), packed, out=torch.empty(1, 50))
