"""Weights smoothed and rounded on a text: the same model, and closer to it after rounding."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.sources import run_conversion
from tests.models import write_llama, write_qwen2
from tests.quantised import load_blocks
from tunan.checkpoint.convert import ConvertOptions
from tunan.checkpoint.manifest import Quality
from tunan.checkpoint.quantize.fitting import can_fit, fit
from tunan.checkpoint.quantize.gptq import gptq
from tunan.checkpoint.quantize.kv_cache import Calibration
from tunan.checkpoint.quantize.report import measured_text
from tunan.checkpoint.quantize.rounding import restored, round_to_scales, scales_of
from tunan.checkpoint.quantize.running import run_source
from tunan.checkpoint.quantize.scheme import QUANTISATIONS, Quantisation, WeightScheme
from tunan.checkpoint.quantize.smoothing import factors, rounded
from tunan.checkpoint.source import open_source
from tunan.errors import CheckFailedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

INT8 = WeightScheme()
INT4 = WeightScheme(bits=4, group=32, scale_dtype="BF16")
TEXT = "The fish is called Kun, and nobody knows how many thousand li it measures. " * 20


@pytest.fixture
def text(tmp_path: Path) -> Calibration:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return Calibration(file)


def with_outliers(directory: Path, times: float = 60) -> Path:
    """A model in which a few inputs of every site are many times the others."""
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if "layernorm" in name or "up_proj" in name or "v_proj.weight" in name:
            tensor[::40] *= times
    save_file(tensors, directory / "model.safetensors")
    return directory


def correlated(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(columns, columns, generator=generator) / columns**0.5
    inputs: torch.Tensor = torch.randn(rows, columns, generator=generator) @ mixing
    return inputs


@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_gptq_s_outputs_are_nearer_than_those_of_the_nearest(scheme: WeightScheme) -> None:
    inputs, weight = correlated(600, 192), torch.randn(48, 192)
    integers, scales = gptq(weight, inputs.T @ inputs / len(inputs), len(inputs), scheme)
    assert integers.dtype == torch.int8
    assert scales.shape == (48, scheme.groups(192))
    assert int(integers.min()) >= scheme.lowest
    assert int(integers.max()) <= scheme.limit
    assert torch.equal(scales, scales.to(torch.bfloat16).float())
    own = scales_of(weight, scheme)
    nearest = restored(round_to_scales(weight, own, scheme), own)
    errors = [
        float((inputs @ (kept - weight).T).square().sum())
        for kept in (restored(integers, scales), nearest)
    ]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_where_inputs_tell_nothing_of_each_other_gptq_rounds_to_nearest(
    scheme: WeightScheme,
) -> None:
    weight = torch.randn(20, 192, generator=torch.Generator().manual_seed(1))
    integers, scales = gptq(weight, torch.eye(192), 1000, scheme)
    own = scales_of(weight, scheme)
    assert torch.equal(scales, own)
    assert torch.equal(integers, round_to_scales(weight, own, scheme))


def test_few_tokens_do_not_make_other_texts_worse_than_rounding_to_nearest() -> None:
    inputs, weight = correlated(4000, 192), torch.randn(48, 192)
    few, others = inputs[:100], inputs[100:]
    integers, scales = gptq(weight, few.T @ few / len(few), len(few), INT4)
    own = scales_of(weight, INT4)
    nearest = restored(round_to_scales(weight, own, INT4), own)
    errors = [
        float((others @ (kept - weight).T).norm()) for kept in (restored(integers, scales), nearest)
    ]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_scales_are_chosen_for_the_columns_that_matter(scheme: WeightScheme) -> None:
    weight = torch.randn(20, 192, generator=torch.Generator().manual_seed(3))
    importance = torch.ones(192)
    importance[::16] = 1e4
    errors = []
    for counts in (None, importance):
        scales = scales_of(weight, scheme, counts)
        kept = restored(round_to_scales(weight, scales, scheme), scales)
        errors.append(float(((kept - weight).square() * importance).sum()))
    assert errors[1] < 0.8 * errors[0]
    assert torch.equal(scales_of(weight, scheme, torch.ones(192)), scales_of(weight, scheme))


def test_gptq_s_integers_stay_in_the_columns_of_their_weights() -> None:
    weight, inputs = torch.randn(16, 128), correlated(400, 128)
    inputs[:, 100] *= 30  # goes first
    integers, scales = gptq(weight, inputs.T @ inputs / 400, 400, INT4)
    difference = (restored(integers, scales) - weight).abs() / scales.repeat_interleave(32, 1)
    assert float(difference[:, 100].max()) <= 0.51  # to nearest, or where the scale cuts


def test_gptq_takes_inputs_that_are_always_zero() -> None:
    inputs = correlated(300, 64)
    inputs[:, 5] = 0
    integers, scales = gptq(torch.randn(8, 64), inputs.T @ inputs / 300, 300, INT8)
    assert torch.isfinite(restored(integers, scales)).all()


def test_factors_even_out_inputs_and_are_shared_by_heads_that_read_the_same_values() -> None:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(200, 64, generator=generator)
    inputs[:, 7] *= 200
    weight = torch.randn(32, 64, generator=generator)
    largest = inputs.abs().amax(0)
    found = factors(inputs, largest, weight, INT8, None)
    assert found is not None
    before, now = (float(x.abs().amax() / x.abs().median()) for x in (inputs, inputs / found))
    assert now < before / 10
    exact = inputs @ weight.T
    errors = [
        float((rounded(x) @ w.T - exact).norm())
        for x, w in ((inputs, weight), (inputs / found, weight * found))
    ]
    assert errors[1] < errors[0] / 3
    shared = factors(inputs, largest, weight, INT8, (2, 2))
    assert shared is not None
    heads = shared.view(2, 2, 16)
    assert torch.equal(heads[:, 0], heads[:, 1])


def test_inputs_that_are_even_already_are_left(text: Calibration) -> None:
    inputs, weight = torch.ones(10, 32), torch.ones(4, 32)
    assert factors(inputs, inputs.abs().amax(0), weight, INT8, None) is None


@pytest.mark.parametrize("write", [write_llama, write_qwen2], ids=["llama", "qwen2"])
def test_smoothing_changes_no_answer(write: object, text: Calibration, tmp_path: Path) -> None:
    assert callable(write)
    source = open_source(with_outliers(write(tmp_path / "source"), times=8))
    fitted = fit(source, INT8, text)
    assert len(fitted.fitted.columns) > 10
    plain, smoothed = run_source(source), run_source(fitted)
    ids = next(plain.windows(measured_text(), 200))
    with torch.no_grad():
        logits = [running.model(ids).logits for running in (plain, smoothed)]
    assert float((logits[1] - logits[0]).norm() / logits[0].norm()) < 1e-5


def test_smoothed_gains_are_written_without_loss(text: Calibration, tmp_path: Path) -> None:
    fitted = fit(open_source(with_outliers(write_llama(tmp_path / "source"))), INT8, text)
    norms = [name for name in fitted.fitted.rows if "layernorm" in name]
    assert norms
    for name in norms:
        gain = fitted.rows(name, 0, fitted.tensors[name].shape[0])
        torch.testing.assert_close(gain.to(torch.bfloat16).float(), gain, rtol=1e-6, atol=0)


def converted(source: Path, out: Path, name: str, text: Calibration | None) -> Quality:
    scheme = QUANTISATIONS[name]
    options = ConvertOptions(quantisation=scheme, report=True)
    opened = open_source(source)
    if text is not None:
        opened = fit(opened, scheme.weights, text)
        chosen = Quantisation(name, scheme.weights, fitted_on=text.name)
        options = ConvertOptions(quantisation=chosen, integers=opened.fitted.integers, report=True)
    quality = run_conversion(opened, out, options).manifest.quality
    assert quality is not None
    return quality


@pytest.mark.parametrize("scheme", ["w8a8", "w4a8"])
def test_a_fitted_model_is_nearer_to_its_source(
    scheme: str, text: Calibration, tmp_path: Path
) -> None:
    source = with_outliers(write_llama(tmp_path / "source"))
    nearest = converted(source, tmp_path / "nearest", scheme, None)
    fitted = converted(source, tmp_path / "fitted", scheme, text)
    assert fitted.perplexity_before == pytest.approx(nearest.perplexity_before, rel=1e-3)
    assert fitted.kl_divergence < 0.8 * nearest.kl_divergence


def test_the_checkpoint_holds_the_integers_found_and_names_the_method(
    text: Calibration, tmp_path: Path
) -> None:
    source = open_source(write_llama(tmp_path / "source"))
    fitted = fit(source, INT4, text)
    chosen = Quantisation("w4a8", INT4, fitted_on=text.name)
    options = ConvertOptions(
        quantisation=chosen, integers=fitted.fitted.integers, tensor_parallel=2
    )
    manifest = run_conversion(fitted, tmp_path / "out", options).manifest
    assert manifest.quantization is not None
    assert "smoothed, rounded by GPTQ on text.txt" in manifest.quantization.weights
    stored = load_blocks(tmp_path / "out")
    assert len(fitted.fitted.integers) == 21
    for name, (integers, scales) in fitted.fitted.integers.items():
        assert torch.equal(stored[name], integers)
        assert torch.equal(stored[f"{name}_scale"].float(), scales)
    assert fitted.fingerprint() != source.fingerprint()
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["quantization_config"]["format"] == "int-quantized"


def test_a_model_of_no_numbers_is_refused(text: Calibration, tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "source")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"][3] = float("nan")
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckFailedError, match=r"layers\.1\.self_attn\.o_proj.*no finite numbers"):
        fit(open_source(directory), INT8, text)


def test_experts_and_latent_attention_are_not_fitted(moe: dict[str, object]) -> None:
    assert not can_fit(moe)
