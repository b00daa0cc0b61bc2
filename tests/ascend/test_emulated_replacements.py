"""What is replaced in the published packages is still there to be replaced."""

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.ascend


def source(package: str, *parts: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec
    assert spec.origin
    return Path(spec.origin).parent.joinpath(*parts).read_text()


def test_the_packages_are_the_versions_that_were_checked() -> None:
    wanted = {"vllm": "0.23.0", "vllm_ascend": "0.23.0", "torch_npu": "2.13.0"}
    assert {name: importlib.metadata.version(name) for name in wanted} == wanted


def test_vllm_ascend_calls_the_triton_kernel_without_triton() -> None:
    text = source("vllm_ascend", "worker", "block_table.py")
    assert "_compute_slot_mapping_kernel[(num_reqs + 1,)](" in text
    assert "HAS_TRITON" not in text


def test_vllm_ascend_calls_its_own_operators_without_asking() -> None:
    text = source("vllm_ascend", "device", "device_op.py")
    assert "torch.ops._C_ascend.moe_gating_top_k(" in text
    assert "torch.ops._C_ascend.npu_moe_init_routing_custom(" in text


def test_every_replacement_says_why() -> None:
    from tunan_emulator.replacements import REPLACEMENTS

    for one in REPLACEMENTS:
        assert importlib.util.find_spec(one.module.partition(".")[0]), one.module
        assert one.what
        assert one.why
        assert one.instead
