"""Mapped tensors, on a file written by the safetensors library."""

import gc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tunan.checkpoint.safetensors_header import read_header
from tunan.engine.mapping import map_tensor

TENSORS = {
    "small": torch.arange(7, dtype=torch.float32),
    "wide": torch.randn(300, 257).to(torch.bfloat16),
    "scalar": torch.tensor(5, dtype=torch.int64),
    "none": torch.empty(0, 4),
    "bytes": torch.randn(33, 5).to(torch.float8_e4m3fn),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    return path


def mapped(path: Path) -> dict[str, torch.Tensor]:
    with path.open("rb") as opened:
        return {s.name: map_tensor(opened.fileno(), s) for s in read_header(path)}


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_every_tensor_has_its_stored_dtype_shape_and_bytes(file: Path) -> None:
    found = mapped(file)
    for name, expected in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape)
        raw = found[name].reshape(-1).view(torch.uint8)
        assert torch.equal(raw, expected.reshape(-1).view(torch.uint8))


def test_writing_to_a_tensor_never_reaches_the_file(file: Path) -> None:
    before = file.read_bytes()
    found = mapped(file)
    found["wide"].zero_()
    assert found["wide"].count_nonzero() == 0
    assert file.read_bytes() == before


def test_a_view_keeps_the_mapping_and_the_last_reference_ends_it(file: Path) -> None:
    view = mapped(file)["wide"][3:5].t()
    gc.collect()
    assert mappings(file) == 1
    assert torch.equal(view, TENSORS["wide"][3:5].t())
    del view
    gc.collect()
    assert mappings(file) == 0


def test_a_tensor_at_an_odd_offset_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} '
    data = torch.tensor([1.5, -2.0]).numpy().tobytes()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    assert (8 + len(header)) % 4
    assert mapped(path)["a"].tolist() == [1.5, -2.0]


def test_a_refused_mapping_is_an_os_error(file: Path) -> None:
    stored = next(s for s in read_header(file) if s.name == "wide")
    with pytest.raises(OSError, match="Bad file descriptor"):
        map_tensor(-1, stored)
