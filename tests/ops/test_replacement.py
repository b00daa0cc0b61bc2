"""`replace` on the families' own modelling code: same logits, and a true report."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tests import models
from tunan.errors import OutsideError, UsageError
from tunan.ops.npu_operators import available
from tunan.ops.replacement import Backend, Replacements, replace

WRITERS = {
    "llama": models.write_llama,
    "qwen2": models.write_qwen2,
    "deepseek_v2": models.write_deepseek_v2_lite,
    "deepseek_v3": models.write_deepseek_v3,
}


@pytest.fixture(scope="module", params=WRITERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp("model"), num_hidden_layers=2)


def _loaded(checkpoint: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return model.eval()


def _logits(model: nn.Module) -> Any:
    ids = torch.arange(3, 25).reshape(2, 11)
    with torch.no_grad():
        return model(input_ids=ids).logits


def _left(model: nn.Module, ending: str) -> list[str]:
    """transformers' own modules that are still there."""
    return [
        path
        for path, module in model.named_modules()
        if type(module).__name__.endswith(ending) and type(module).__module__[:12] == "transformers"
    ]


def _classes(report: Replacements) -> set[str]:
    return {replaced.was for replaced in report.replaced}


def test_what_is_no_module_is_named() -> None:
    with pytest.raises(UsageError, match="takes a torch module, not str"):
        replace("x", "cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_replaced_model_gives_the_same_logits(checkpoint: Path, backend: Backend) -> None:
    model = _loaded(checkpoint)
    expected = _logits(model)
    report = replace(model, backend)
    assert not _left(model, "RMSNorm")
    assert not _left(model, "MLP")
    torch.testing.assert_close(_logits(model), expected, rtol=1e-3, atol=1e-3)
    assert any("RMSNorm" in name for name in _classes(report))
    assert any(name.endswith("MLP") for name in _classes(report))
    assert any(name.endswith("Attention") for name in _classes(report))


def test_complex_rotary_frequencies_become_real(tmp_path: Path) -> None:
    model = _loaded(models.write_deepseek_v2_lite(tmp_path, num_hidden_layers=1))
    report = replace(model, "cpu")
    assert "DeepseekV2RotaryEmbedding" in _classes(report)
    frequencies = model.model.rotary_emb(torch.zeros(1), torch.arange(4)[None])
    assert not frequencies.is_complex()


def test_another_model_of_the_same_class_is_not_touched(tmp_path: Path) -> None:
    first = _loaded(models.write_llama(tmp_path / "a", num_hidden_layers=1))
    second = _loaded(tmp_path / "a")
    replace(first, "cpu")
    assert "forward" in vars(first.model.layers[0].self_attn)
    assert "forward" not in vars(second.model.layers[0].self_attn)


def test_what_was_not_replaced_is_reported_with_the_reason(tmp_path: Path) -> None:
    model = _loaded(models.write_deepseek_v3(tmp_path, num_hidden_layers=2))
    report = replace(model, "cpu")
    kept = {k.path: k.reason for k in report.kept}
    assert "npu_grouped_matmul" in kept["model.layers.1.mlp.experts"]


def test_replacing_twice_changes_nothing_more(tmp_path: Path) -> None:
    model = _loaded(models.write_llama(tmp_path, num_hidden_layers=1))
    replace(model, "cpu")
    expected = _logits(model)
    assert replace(model, "cpu").replaced == ()
    torch.testing.assert_close(_logits(model), expected)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(UsageError, match="unknown backend 'gpu'"):
        replace(nn.Sequential(), "gpu")  # type: ignore[arg-type]


@pytest.mark.skipif(available(), reason="torch_npu is installed here")
def test_without_torch_npu_the_npu_backend_says_what_to_do() -> None:
    with pytest.raises(OutsideError, match="torch_npu cannot be imported"):
        replace(nn.Sequential(nn.GELU()), "npu")
