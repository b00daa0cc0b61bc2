"""An int8 cache's scales: found by running the model, stored and described for vllm-ascend."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoint.sources import run_conversion
from tests.models import write_llama
from tests.quantised import load_blocks
from tunan.checkpoint.convert import ConvertOptions
from tunan.checkpoint.quantize.kv_cache import (
    Calibration,
    check_cache_fits,
    is_cache_tensor,
    observed_scales,
    with_cache_scales,
)
from tunan.checkpoint.quantize.running import run_source
from tunan.checkpoint.quantize.scheme import QUANTISATIONS
from tunan.checkpoint.source import open_source
from tunan.checkpoint.verify import verify
from tunan.errors import CheckFailedError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HEADS, SIZE = 2, 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("kv") / "source")


@pytest.fixture
def calibration(tmp_path: Path) -> Calibration:
    text = tmp_path / "text.txt"
    text.write_text("The Peng sets out for the south, and rises ninety thousand li. " * 3)
    return Calibration(text)


def test_the_model_is_the_one_transformers_loads_itself(model: Path) -> None:
    from transformers import AutoModelForCausalLM

    own = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    running = run_source(open_source(model))
    ids = torch.tensor([[5, 7, 11, 13, 2, 40]])
    with torch.no_grad():
        assert torch.equal(running.model(ids).logits, own(ids).logits)


def test_a_scale_is_the_largest_value_of_its_channel(model: Path, calibration: Calibration) -> None:
    running = run_source(open_source(model))
    seen: list[torch.Tensor] = []
    projection = running.model.model.layers[1].self_attn.v_proj
    hook = projection.register_forward_hook(lambda _m, _i, out: seen.append(out))
    for window in running.windows(calibration.text, 10**6):
        running.model(window)
    hook.remove()
    largest = torch.cat([values.flatten(0, 1) for values in seen]).abs().amax(0)
    source = with_cache_scales(open_source(model), calibration)
    name = "model.layers.1.self_attn.attn.v_cache_scale"
    found = source.rows(name, 0, HEADS * SIZE)
    assert torch.equal(found, (largest.detach() / 127).to(torch.bfloat16).float())


def test_values_that_are_no_numbers_are_refused(model: Path, calibration: Calibration) -> None:
    running = run_source(open_source(model))
    running.model.model.layers[1].self_attn.v_proj.weight.data[3] = float("nan")
    with pytest.raises(CheckFailedError, match=r"layers\.1\..*v_cache_scale.*no finite numbers"):
        observed_scales(running, calibration.text)


def test_a_text_of_no_tokens_is_refused(model: Path) -> None:
    with pytest.raises(CheckFailedError, match="fewer than two tokens"):
        next(run_source(open_source(model)).windows("", 100))


@pytest.mark.parametrize("scheme", [None, "w8a8"])
def test_every_layer_has_its_scales_and_a_description_says_so(
    model: Path, calibration: Calibration, scheme: str | None, tmp_path: Path
) -> None:
    options = ConvertOptions(
        target="ascend910b",
        calibration=calibration,
        quantisation=QUANTISATIONS[scheme] if scheme else None,
    )
    source = with_cache_scales(open_source(model), calibration)
    outcome = run_conversion(source, tmp_path / "out", options)
    stored = load_blocks(tmp_path / "out")
    cache = {name for name in stored if is_cache_tensor(name)}
    assert len(cache) == 3 * 4
    assert all(stored[name].shape == (HEADS * SIZE,) for name in cache)
    assert not any(stored[name].any() for name in cache if name.endswith("offset"))
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    described = json.loads((tmp_path / "out/quant_model_description.json").read_text())
    assert described["kv_cache_type"] == "C8"
    assert described["model.layers.2.self_attn.k_proj.kv_cache_scale"] == "C8"
    expected = "W8A8_DYNAMIC" if scheme else "FLOAT"
    assert described["model.layers.0.mlp.up_proj.weight"] == expected
    assert described["lm_head.weight"] == "FLOAT"
    assert outcome.manifest.kv_cache is not None
    assert (outcome.manifest.kv_cache.layers, outcome.manifest.unexpected_tensors) == (3, ())
    assert verify(tmp_path / "out", outcome.manifest, 1, lambda size: None) == []


def test_the_text_decides_the_checkpoint(model: Path, calibration: Calibration) -> None:
    first = with_cache_scales(open_source(model), calibration)
    again = with_cache_scales(open_source(model), calibration)
    other = with_cache_scales(open_source(model), Calibration())
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("target", "degree", "message"),
    [
        ("cpu", None, r"--kv int8 is Ascend's static cache, not for --target cpu"),
        ("ascend910b", 2, r"does not go with --tensor-parallel-size"),
    ],
)
def test_what_has_no_such_cache_is_refused(
    llama: dict[str, Any], target: str, degree: int | None, message: str
) -> None:
    check_cache_fits(llama, "ascend910b", None)
    with pytest.raises(UsageError, match=message):
        check_cache_fits(llama, target, degree)


def test_latent_attention_has_no_such_cache(v3: dict[str, Any], moe: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no int8 cache for MLA"):
        check_cache_fits(v3, "ascend910b", None)
    with pytest.raises(UsageError, match="has no DeepseekForCausalLM"):
        check_cache_fits(moe, "ascend910b", None)
