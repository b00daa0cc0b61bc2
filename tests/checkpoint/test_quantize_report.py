"""The quality report: the same model before and after, on the same text."""

from pathlib import Path

import pytest
import torch

from tests.checkpoint.sources import run_conversion
from tests.models import write_deepseek_v2_lite, write_llama
from tests.quantised import reference_model
from tunan.checkpoint.convert import ConvertOptions
from tunan.checkpoint.quantize import report
from tunan.checkpoint.quantize.kv_cache import Calibration, with_cache_scales
from tunan.checkpoint.quantize.running import run_source
from tunan.checkpoint.quantize.scheme import QUANTISATIONS
from tunan.checkpoint.source import open_source

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

OPTIONS = ConvertOptions(quantisation=QUANTISATIONS["w8a8"], report=True)


def test_the_figures_are_those_of_an_integer_reference(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    quality = run_conversion(source, tmp_path / "out", OPTIONS).manifest.quality
    assert quality is not None
    running = run_source(open_source(source))
    exact = reference_model(source, tmp_path / "out", torch.float32)
    losses, agreed, divergence, tokens = [0.0, 0.0], 0, 0.0, 0
    changes = []
    with torch.no_grad():
        for window in running.windows(report.measured_text(), report.MOST_TOKENS):
            found = [
                torch.log_softmax(model(window).logits[0, :-1].float(), -1)
                for model in (running.model, exact)
            ]
            single = [logprobs.gather(1, window[0, 1:, None]) for logprobs in found]
            for at, own in enumerate(single):
                losses[at] -= float(own.sum())
            changes.append(single[0] - single[1])
            agreed += int((found[0].argmax(1) == found[1].argmax(1)).sum())
            divergence += float((found[0].exp() * (found[0] - found[1])).sum())
            tokens += window.shape[1] - 1
    before, now = (float(torch.tensor(loss / tokens).exp()) for loss in losses)
    assert quality.tokens == tokens
    assert quality.perplexity_before == pytest.approx(before, rel=1e-3)
    assert quality.perplexity == pytest.approx(now, rel=1e-3)
    assert quality.kl_divergence == pytest.approx(divergence / tokens, rel=0.1)
    error = now / before * float(torch.cat(changes).std()) / tokens**0.5
    assert quality.standard_error == pytest.approx(error, rel=0.02)
    assert quality.greedy_agreement == pytest.approx(agreed / tokens, abs=0.01)


def test_experts_take_part(tmp_path: Path) -> None:
    source = write_deepseek_v2_lite(tmp_path / "source")
    quality = run_conversion(source, tmp_path / "out", OPTIONS).manifest.quality
    assert quality is not None
    assert 0 < quality.kl_divergence < 0.2
    assert quality.greedy_agreement > 0.5


def test_an_int8_cache_shows(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    calibrated = with_cache_scales(open_source(source), Calibration())
    options = ConvertOptions(target="ascend910b", calibration=Calibration(), report=True)
    quality = run_conversion(calibrated, tmp_path / "out", options).manifest.quality
    assert quality is not None
    assert 0 < quality.kl_divergence < 0.05


def test_no_report_is_made_for_nothing_or_unasked(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    assert (
        run_conversion(source, tmp_path / "a", ConvertOptions(report=True)).manifest.quality is None
    )
    silent = ConvertOptions(quantisation=QUANTISATIONS["w8a8"], report=False)
    assert run_conversion(source, tmp_path / "b", silent).manifest.quality is None


def test_a_model_too_large_is_not_run_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(write_llama(tmp_path / "source"))
    assert report.is_worth_it(source)
    monkeypatch.setattr(report, "FLOAT32_WEIGHTS", 1000)
    assert not report.is_worth_it(source)
