import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tunan.checkpoint.safetensors_header import DTYPE_BYTES, StoredTensor, read_header
from tunan.errors import CheckFailedError, TunanError

# How long an example takes depends on the machine and is not what is tested.
fuzz = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

F32_PAIR = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
}


def write(path: Path, header: Any, data: bytes = bytes(12)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CheckFailedError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def read_or_refuse(path: Path) -> list[StoredTensor] | None:
    """The tensors, or None after one well-formed error; anything else escapes."""
    error: TunanError
    try:
        return read_header(path)
    except TunanError as refused:
        error = refused
    assert str(path) in str(error)
    assert "\n" not in str(error)
    return None


def test_tensors_come_in_the_order_of_their_data(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "b": F32_PAIR["b"], "a": F32_PAIR["a"]}
    tensors = read_header(write(tmp_path / "x", header))
    assert [tensor.name for tensor in tensors] == ["a", "b"]


def test_a_header_padded_with_spaces_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x", json.dumps(F32_PAIR).encode() + b"   ")
    assert read_header(path)[1] == StoredTensor(
        "b", "F32", (1,), path.stat().st_size - 4, path.stat().st_size
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}, "unknown dtype 'F99'"),
        ({"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}, "unknown dtype"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, "shape [-2]"),
        ({"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}}, "shape [2.0]"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, "data_offsets [8, 0]"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, "data_offsets [0]"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, "needs 12 bytes"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "4 unused bytes"),
        ({"b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "overlaps"),
        ({"b": {"dtype": "F32", "shape": [9], "data_offsets": [8, 44]}}, "truncated"),
        ({"a": 7}, "not an object"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    message = refusal(write(tmp_path / "x", F32_PAIR | change))
    assert complaint in message
    assert "tensor 'a'" in message or "tensor 'b'" in message


def test_a_truncated_file_names_the_tensor_that_is_cut(tmp_path: Path) -> None:
    assert "tensor 'b': truncated" in refusal(write(tmp_path / "x", F32_PAIR, bytes(11)))


def test_a_file_cut_inside_its_header_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x", F32_PAIR)
    path.write_bytes(path.read_bytes()[:40])
    assert "truncated" in refusal(path)


def test_bytes_after_the_last_tensor_are_refused(tmp_path: Path) -> None:
    assert "3 bytes after" in refusal(write(tmp_path / "x", F32_PAIR, bytes(15)))


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    entry = json.dumps(F32_PAIR["a"])
    assert "'a' is there twice" in refusal(
        write(tmp_path / "x", f'{{"a": {entry}, "a": {entry}}}'.encode())
    )


def test_an_absurd_header_length_is_not_tried(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    assert "not a safetensors file" in refusal(path)


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert "git lfs pull" in refusal(path)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_a_json_object_is_refused(tmp_path: Path, text: bytes) -> None:
    assert "damaged header" in refusal(write(tmp_path / "x", text, b""))


sizes = st.one_of(st.integers(-1, 3), st.just(1 << 70), st.floats(), st.text(max_size=2))
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BYTES, "F4", 3]),
        "shape": st.lists(sizes, max_size=3),
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2),
    }
)


@fuzz
@given(st.dictionaries(st.sampled_from("abc"), entries, max_size=3), st.binary(max_size=40))
def test_any_header_gives_a_result_that_safetensors_agrees_with_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], data: bytes
) -> None:
    path = write(tmp_path_factory.mktemp("fuzz") / "x", header, data)
    tensors = read_or_refuse(path)
    if tensors is None:
        return
    try:
        with safe_open(path, framework="pt") as file:
            assert sorted(file.keys()) == sorted(tensor.name for tensor in tensors)
    except SafetensorError as error:
        pytest.fail(f"accepted what safetensors refuses: {error}")


@fuzz
@given(st.binary(max_size=200))
def test_any_bytes_give_a_result_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x"
    path.write_bytes(data)
    read_or_refuse(path)


@fuzz
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_in_a_real_header_gives_a_result_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x"
    save_file({"w": torch.ones(3, 4), "b": torch.ones(4, dtype=torch.bfloat16)}, path)
    data = bytearray(path.read_bytes())
    data[position % len(data)] = value
    path.write_bytes(data)
    read_or_refuse(path)
