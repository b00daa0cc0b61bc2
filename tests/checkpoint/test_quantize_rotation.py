"""Models turned by orthogonal matrices: the same answers, without the outliers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.sources import run_conversion
from tests.models import write_llama, write_qwen2
from tests.quantised import load_blocks
from tunan.checkpoint.convert import ConvertOptions
from tunan.checkpoint.quantize.fitted_source import Fitted, FittedSource
from tunan.checkpoint.quantize.fitting import fit
from tunan.checkpoint.quantize.kv_cache import Calibration
from tunan.checkpoint.quantize.report import measured_text
from tunan.checkpoint.quantize.rotation import EMBEDDING, HEAD, Rotation, orthogonal
from tunan.checkpoint.quantize.running import run_source
from tunan.checkpoint.quantize.scheme import Quantisation, WeightScheme
from tunan.checkpoint.source import open_source

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

INT8 = WeightScheme()
TEXT = "The bird is called Peng, and nobody knows how many thousand li its back measures. " * 20


def uneven(directory: Path) -> Path:
    """Gives every norm another gain for each channel, a few of them large."""
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if "norm" in name:
            tensor.copy_(torch.rand(tensor.shape).to(tensor.dtype) + 0.5)
            tensor[::40] *= 20
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("size", [1, 3, 64, 96, 576])
def test_matrices_are_orthogonal_and_none_of_their_entries_is_large(size: int) -> None:
    found = orthogonal(size)
    torch.testing.assert_close(found @ found.T, torch.eye(size, dtype=torch.float64))
    assert float(found.abs().max()) <= (2 / size) ** 0.5 + 1e-12
    assert torch.equal(found, orthogonal(size))


@pytest.mark.parametrize("write", [write_llama, write_qwen2], ids=["llama", "qwen2"])
def test_a_turned_model_gives_the_same_answers(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    source = open_source(uneven(write(tmp_path / "source")))
    turned = FittedSource(source, Fitted(rotation=Rotation.of(source.config)))
    plain, running, read = (run_source(one) for one in (source, source, turned))
    Rotation.of(source.config).apply(running.model)
    ids = next(plain.windows(measured_text(), 200))
    with torch.no_grad():
        exact, *others = (one.model(ids).logits for one in (plain, running, read))
    for logits in others:
        assert float((logits - exact).norm() / exact.norm()) < 1e-4


def test_a_turned_model_has_a_head_of_its_own(tmp_path: Path) -> None:
    source = open_source(uneven(write_llama(tmp_path / "source")))
    turned = FittedSource(source, Fitted(rotation=Rotation.of(source.config)))
    assert HEAD in turned.tensors
    assert not turned.config["tie_word_embeddings"]
    embedding, head = (turned.rows(name, 0, 8) for name in (EMBEDDING, HEAD))
    assert not torch.equal(embedding, head)


def test_inputs_of_a_turned_model_have_no_outliers(tmp_path: Path) -> None:
    source = open_source(uneven(write_llama(tmp_path / "source")))
    ratios = []
    for rotate in (False, True):
        running = run_source(source)
        if rotate:
            Rotation.of(source.config).apply(running.model)
        found: list[torch.Tensor] = []
        layer = running.model.model.layers[1].self_attn.q_proj
        layer.register_forward_pre_hook(lambda _, x, found=found: found.append(x[0][0]))
        with torch.no_grad():
            running.model(next(running.windows(TEXT, 100)))
        ratios.append(float((found[0].abs().amax(1) / found[0].square().mean(1).sqrt()).mean()))
    assert ratios[1] < 0.7 * ratios[0]


def test_a_turned_checkpoint_is_nearer_to_its_source_than_one_rounded_to_nearest(
    tmp_path: Path,
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    source = open_source(uneven(write_llama(tmp_path / "source")))
    fitted = fit(source, INT8, Calibration(text), rotate=True)
    chosen = Quantisation("w8a8", INT8, fitted_on=text.name, rotated=True)
    asked = ConvertOptions(
        quantisation=chosen, integers=fitted.fitted.integers, report=True, report_tokens=300
    )
    turned = run_conversion(fitted, tmp_path / "turned", asked).manifest
    plain_scheme = Quantisation("w8a8", INT8)
    nearest = ConvertOptions(quantisation=plain_scheme, report=True, report_tokens=300)
    plain = run_conversion(source, tmp_path / "plain", nearest).manifest
    assert turned.quality is not None
    assert plain.quality is not None
    assert turned.quality.perplexity_before == pytest.approx(
        plain.quality.perplexity_before, rel=1e-3
    )
    assert turned.quality.kl_divergence < 0.5 * plain.quality.kl_divergence
    assert turned.quantization is not None
    assert "rotated" in turned.quantization.weights
    stored = load_blocks(tmp_path / "turned")
    assert HEAD in stored
    norms = [tensor for name, tensor in stored.items() if name == "model.norm.weight"]
    assert torch.equal(norms[0].float(), torch.ones(len(norms[0])))
