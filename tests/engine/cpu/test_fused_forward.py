"""The fused forward in a real engine: the same tokens however requests come, and as unfused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.sources import run_conversion
from tests.engine.cpu.quantised import quantise
from tests.engine.generation import prompts
from tests.engine.vllm_process import run_in_vllm
from tests.models import write_llama, write_qwen2
from tunan.checkpoint.convert import ConvertOptions
from tunan.checkpoint.quantize.scheme import QUANTISATIONS
from tunan.engine.cpu.switch import VARIABLE

pytestmark = pytest.mark.engine

MODELS = ("llama-w8a8", "llama-w4a8", "qwen2-w8a8", "smollm-w8a8", "llama-mixed")
# In int8 where the rest of "llama-mixed" is int4: layers of every kind, and never all of a kind.
FINER = (
    *("0.self_attn.q_proj", "0.self_attn.k_proj", "0.self_attn.v_proj", "1.mlp.down_proj"),
    *("1.self_attn.o_proj", "2.mlp.gate_proj", "2.mlp.up_proj"),
)
LONG = [prompts()[-1] + prompts()[-2] + [7, 8], prompts()[-1] + prompts()[-2] + [9]]

# What differs from all prompts at once; every one of them must give the same tokens.
WAYS: dict[str, dict[str, Any]] = {
    "one by one": {"rounds": [[prompt] for prompt in prompts()]},
    "in chunks of 32 tokens": {"arguments": {"max_num_batched_tokens": 32}},
    "with two sequences at once": {"arguments": {"max_num_seqs": 2}},
    "preempted": {
        "arguments": {"num_gpu_blocks_override": 12, "block_size": 32, "max_model_len": 256}
    },
}


def mixed(source: Path, destination: Path) -> str:
    finer = frozenset(f"model.layers.{layer}.weight" for layer in FINER)
    chosen = replace(QUANTISATIONS["w4a8"], finer=finer)
    run_conversion(source, destination, ConvertOptions(quantisation=chosen))
    return str(destination)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    # Heads of 64 in groups of three, a tied embedding and sizes that are no power of two.
    shape = {"hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1}
    smollm = write_llama(folder / "smollm", tie_word_embeddings=True, **shape)
    sources = {
        "llama": write_llama(folder / "llama"),
        "qwen2": write_qwen2(folder / "qwen2"),
        "smollm": smollm,
    }
    quantised = {}
    for name in MODELS:
        source, scheme = name.split("-")
        if scheme == "mixed":
            quantised[name] = mixed(sources[source], folder / name)
            continue
        head = source != "smollm"
        quantised[name] = str(quantise(sources[source], folder / name, scheme, head=head))
    return quantised


def ask(models: dict[str, str], model: str, **question: Any) -> dict[str, Any]:
    return {"model": models[model], "prompts": prompts(), **question}


@pytest.fixture(scope="module")
def fused(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    questions = {model: ask(models, model) for model in MODELS}
    questions |= {way: ask(models, "llama-w8a8", **changed) for way, changed in WAYS.items()}
    for name, cached in (("cached", True), ("not cached", False)):
        arguments = {"enable_prefix_caching": cached, "block_size": 32}
        rounds = [[prompt] for prompt in LONG]
        questions[name] = ask(models, "llama-w8a8", rounds=rounds, arguments=arguments)
    questions["float32"] = ask(models, "llama-w8a8", arguments={"dtype": "float32"})
    questions["float16"] = ask(models, "llama-w8a8", arguments={"dtype": "float16"})
    answers = run_in_vllm(
        "tests.engine.cpu.runs:generate_all",
        list(questions.values()),
        tmp_path_factory.mktemp("fused"),
    )
    return dict(zip(questions, answers, strict=True))


@pytest.fixture(scope="module")
def unfused(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(VARIABLE, "linear,attention")
        answers = run_in_vllm(
            "tests.engine.cpu.runs:generate_all",
            [ask(models, model) for model in MODELS],
            tmp_path_factory.mktemp("unfused"),
        )
    return dict(zip(MODELS, answers, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_the_decoder_layers_are_fused(fused: dict[str, Any], model: str) -> None:
    assert "decoder layers are fused" in " ".join(fused[model]["log"])


@pytest.mark.parametrize("model", MODELS)
def test_every_token_is_that_of_the_unfused_forward(
    fused: dict[str, Any], unfused: dict[str, Any], model: str
) -> None:
    assert "decoder layers are vLLM's own" not in " ".join(fused[model]["log"])
    assert not unfused[model]["log"]
    assert fused[model]["tokens"] == unfused[model]["tokens"]


@pytest.mark.parametrize("way", WAYS)
def test_tokens_do_not_depend_on_how_requests_are_batched(fused: dict[str, Any], way: str) -> None:
    assert fused[way]["tokens"] == fused["llama-w8a8"]["tokens"]


def test_one_of_these_ways_did_preempt(fused: dict[str, Any]) -> None:
    assert fused["llama-w8a8"]["preemptions"] == 0
    assert fused["preempted"]["preemptions"] > 0


def test_a_cached_prefix_gives_the_same_tokens(fused: dict[str, Any]) -> None:
    assert fused["cached"]["tokens"] == fused["not cached"]["tokens"]


def test_float32_is_fused_too(fused: dict[str, Any]) -> None:
    assert "decoder layers are fused" in " ".join(fused["float32"]["log"])


def test_float16_runs_vllms_layers_and_says_why(fused: dict[str, Any]) -> None:
    said = [line for line in fused["float16"]["log"] if "float16" in line]
    assert len(said) == 2
    assert "decoder layers are vLLM's own: activations are torch.float16" in said[1]
