import struct
from pathlib import Path

import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gguf_files import write_gguf
from tests.models import write_llama
from tunan.checkpoint.gguf_header import read_gguf
from tunan.checkpoint.source import open_source
from tunan.errors import CheckFailedError, TunanError

# How long an example takes depends on the machine and is not what is tested.
fuzz = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

HEAD = b"GGUF" + struct.pack("<I", 3)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, rows: int, kind: int, offset: int) -> bytes:
    return text(name) + struct.pack("<IQIQ", 1, rows, kind, offset)


def with_tensors(*tensors: bytes, data: int = 64) -> bytes:
    head = HEAD + struct.pack("<QQ", len(tensors), 0) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(folder / "m.gguf", write_llama(folder / "hf", num_hidden_layers=1))


def refusal(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckFailedError) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_metadata_and_tensors_agree_with_the_gguf_package(real: Path) -> None:
    read, reference = read_gguf(real), GGUFReader(real)
    ours = read.metadata
    theirs = {
        key: field.contents()
        for key, field in reference.fields.items()
        if not key.startswith("GGUF.")
    }
    assert ours == theirs
    assert [(t.name, list(t.shape), t.kind, t.start, t.stop) for t in read.tensors] == [
        (t.name, t.shape.tolist()[::-1], t.tensor_type, t.data_offset, t.data_offset + t.n_bytes)
        for t in reference.tensors
    ]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"GGUF", "truncated"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "GGUF version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (HEAD + struct.pack("<QQ", 0, 1 << 60), "truncated: 1152921504606846976 entries"),
        (HEAD + struct.pack("<QQ", 1 << 60, 0), "truncated"),
        (HEAD + struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<I", 99) + bytes(9), "type 99"),
        (
            HEAD + struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 60),
            "truncated",
        ),
        (
            HEAD + struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1 << 60),
            "array type 9",
        ),
        (with_tensors(tensor("a", 8, 77, 0)), "tensor 'a': unknown GGML type 77"),
        (with_tensors(tensor("a", 8, 2, 0)), "tensor 'a': damaged: Q4_0 of shape [8]"),
        (with_tensors(tensor("a", 800, 0, 0)), "tensor 'a': truncated"),
        (with_tensors(tensor("a", 8, 0, 0), tensor("a", 8, 0, 32)), "tensor 'a': damaged: it is"),
        (with_tensors(tensor("a", 16, 0, 0), tensor("b", 8, 0, 32)), "tensor 'b': damaged: it ov"),
    ],
)
def test_damage_is_named(tmp_path: Path, data: bytes, complaint: str) -> None:
    assert complaint in refusal(tmp_path, data)


def test_a_truncated_file_names_the_tensor_that_is_cut(real: Path, tmp_path: Path) -> None:
    assert "tensor '" in refusal(tmp_path, real.read_bytes()[:-100])


def open_or_refuse(path: Path) -> None:
    """Opens and reads a row; one well-formed error may stop it, anything else escapes."""
    error: TunanError
    try:
        source = open_source(path)
        for name in source.tensors:
            source.rows(name, 0, 1)
    except TunanError as refused:
        error = refused
    else:
        return
    assert str(path) in str(error)
    assert "\n" not in str(error)


@fuzz
@given(st.binary(max_size=300))
def test_any_bytes_after_the_magic_give_a_result_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.gguf"
    path.write_bytes(HEAD + data)
    open_or_refuse(path)


@fuzz
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_changed_bytes_in_a_real_header_give_a_result_or_one_error(
    real: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[float, int]]
) -> None:
    data = bytearray(real.read_bytes())
    header = read_gguf(real).tensors[0].start
    for place, value in changes:
        data[int(place * (header - 1))] = value
    path = tmp_path_factory.mktemp("fuzz") / "x.gguf"
    path.write_bytes(data)
    open_or_refuse(path)
