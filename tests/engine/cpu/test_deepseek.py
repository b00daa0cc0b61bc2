"""DeepSeek-V2 and V3 with our kernels for experts and latent attention: what layers compute, and a
real engine."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.cpu.agreement import agreed
from tests.engine.cpu.quantised import quantise
from tests.engine.cpu.runs import TOKENS
from tests.engine.generation import prompts
from tests.engine.vllm_process import ProcessFailed, run_in_vllm
from tests.models import write_deepseek_v2_lite, write_deepseek_v3
from tunan.engine.cpu.switch import VARIABLE

pytestmark = pytest.mark.engine

# DeepSeek-V2-Lite; V2 itself, which routes by groups; V3.
SOURCES: dict[str, Any] = {
    "v2lite": lambda path: write_deepseek_v2_lite(path),
    "v2": lambda path: write_deepseek_v2_lite(
        path,
        n_group=4,
        topk_group=2,
        topk_method="group_limited_greedy",
        routed_scaling_factor=16.0,
    ),
    "v3": lambda path: write_deepseek_v3(path),
}
MODELS = ("v2lite-w8a8", "v2-w8a8", "v3-w8a8", "v3-w4a8")
CPU_MLA = {"attention_backend": "CPU_MLA"}
INT8 = "int8_per_token_head"
# Bytes of a token's latent, and how far decoding may be from vLLM's kernel over bfloat16.
CACHES = {"auto": (1152, 0.01), INT8: (584, 0.02)}
# Models whose layers are run in steps: what of, in which type, over which cache.
LAYERS = (
    ("v3-w8a8", "bfloat16", "auto"),
    ("v3-w4a8", "bfloat16", INT8),
    ("v2lite-w8a8", "bfloat16", INT8),
    ("v2-w8a8", "bfloat16", "auto"),
    ("v3-w8a8", "float32", "auto"),
)
SAME = [case for case in LAYERS if case[1] == "bfloat16" and case[0] != "v2lite-w8a8"]
METHODS = {"w8a8": "W8A8Method", "w4a8": "W4A8Method"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    sources = {name: write(folder / name) for name, write in SOURCES.items()}
    found = {}
    for name in MODELS:
        source, scheme = name.split("-")
        found[name] = str(quantise(sources[source], folder / name, scheme))
    return found


@pytest.fixture(scope="module")
def looked(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # In float32 nothing but int8 activations is rounded.
    exact = {"dtype": "float32", "kv_cache": "auto", "arguments": CPU_MLA}
    plain = {"dtype": "bfloat16", "model": models["v3-w8a8"], "arguments": CPU_MLA}
    question = {
        "experts": [exact | {"model": models[model]} for model in MODELS],
        "latents": [plain | {"kv_cache": cache} for cache in CACHES],
        "layers": [
            {"model": models[model], "dtype": dtype, "kv_cache": cache, "arguments": CPU_MLA}
            for model, dtype, cache in LAYERS
        ],
    }
    scratch: Path = tmp_path_factory.mktemp("run")
    return dict(run_in_vllm("tests.engine.cpu.latents:look", question, scratch))


@pytest.mark.parametrize("model", MODELS)
def test_a_layer_gives_what_paper_and_checkpoint_say(looked: dict[str, Any], model: str) -> None:
    found = looked["experts"][MODELS.index(model)]
    assert found["methods"] == [METHODS[model.split("-")[1]]]
    assert found["error"] < 1e-5


@pytest.mark.parametrize("model", MODELS)
def test_a_token_has_the_bits_alone_that_it_has_among_others(
    looked: dict[str, Any], model: str
) -> None:
    assert looked["experts"][MODELS.index(model)]["alone"]


def test_experts_that_are_not_covered_are_named(looked: dict[str, Any]) -> None:
    assert looked["expert gaps"] == {
        "nothing": None,
        "in_dtype": "activations are torch.float64",
        "activation": "the activation is gelu",
        "swiglu_limit": "SwiGLU is clamped",
        "has_bias": "experts have biases",
        "is_lora_enabled": "LoRA is in use",
        "weighed inputs": "the router weighs inputs",
        "methods": [None, None],
        "log": ["tunan: vLLM's own kernels run the W4A8 experts: SwiGLU is clamped"],
        "dp_size": "tokens are shared out among ranks",
        "enable_eplb": "experts move between ranks",
        "zero points": "activations have a zero point",
        "a tensor": "weights have one scale a tensor",
        "large groups": "groups are of 256, not of (32, 64, 128)",
        "small groups": None,
    }


@pytest.mark.parametrize("cache", CACHES)
def test_decoding_gives_what_vllms_own_kernel_does(looked: dict[str, Any], cache: str) -> None:
    found = looked["latents"][list(CACHES).index(cache)]
    size, tolerance = CACHES[cache]
    assert found["class"] == "CpuMlaImpl"
    assert found["stock_because"] is None
    assert found["bytes"] == size
    assert 0 < found["error"] < tolerance


def test_latent_attention_that_is_not_covered_is_named(looked: dict[str, Any]) -> None:
    assert looked["latent gaps"] == {
        "nothing": None,
        "fp8": "the KV cache is fp8",
        "speculative_config": "speculative decoding is in use",
        "kv_transfer_config": "a KV connector reads vLLM's own layout",
        "float16": "activations are torch.float16",
        "unquantised": "the model is not quantised",
        "unquantised, int8": None,
        "switched off": f"{VARIABLE} leaves it out",
        "AMX": (
            f"--kv-cache-dtype {INT8} with latent attention: vLLM's kernel for AMX has none;"
            " add --attention-backend CPU_MLA"
        ),
    }


by_layers = pytest.mark.parametrize("case", LAYERS, ids=" ".join)


@by_layers
def test_a_layer_is_one_call_and_with_a_prompt_two(looked: dict[str, Any], case: Any) -> None:
    found = looked["layers"][LAYERS.index(case)]
    assert found["fused"]
    assert found["calls"] == [2, 1]


@by_layers
def test_a_sequence_has_the_bits_alone_that_it_has_among_eight(
    looked: dict[str, Any], case: Any
) -> None:
    """Through prompts and decoding, whatever else is in a step."""
    assert looked["layers"][LAYERS.index(case)]["alone"]


@by_layers
def test_ranks_add_up_twice_a_layer(looked: dict[str, Any], case: Any) -> None:
    assert looked["layers"][LAYERS.index(case)]["in halves"]


@by_layers
def test_fused_layers_are_as_far_from_vllms_own_as_int8_makes_the_last_bits(
    looked: dict[str, Any], case: Any
) -> None:
    """What is in another order are the sums of two products, into latent space and out of it, of
    norms, and of what an expert's weight is divided by; bfloat16 rounds most of that away."""
    found = looked["layers"][LAYERS.index(case)]
    assert found["difference"] < (0.02 if case[1] == "bfloat16" else 0.05)
    assert found["same"] > 0.95


@pytest.mark.parametrize("case", SAME, ids=" ".join)
def test_with_our_two_products_vllms_own_layers_give_the_same_bits(
    looked: dict[str, Any], case: Any
) -> None:
    """Of the others a norm or an expert's weight is rounded otherwise somewhere."""
    assert looked["layers"][LAYERS.index(case)]["otherwise"] == 0.0


def eight() -> list[list[int]]:
    first, second, *rest = prompts()
    return [first, second, *rest, second + first, rest[0] + first]


def ask(models: dict[str, str], model: str, **question: Any) -> dict[str, Any]:
    return {"model": models[model], "prompts": eight(), "arguments": CPU_MLA, **question}


def test_decoder_layers_that_cannot_be_fused_are_named(looked: dict[str, Any]) -> None:
    assert looked["refusals"] == {
        "nothing": None,
        "lora_config": "LoRA is in use",
        "use_mla": "latent attention is switched off",
        "is_v32": "attention is sparse",
        "tunan_packed": "self_attn.q_b_proj is neither W8A8 nor W4A8",
        "bias": "mlp.down_proj has a bias",
        "use_sequence_parallel_moe": "tokens are shared out among ranks",
        "tunan_experts": "experts are neither W8A8 nor W4A8 of ours",
        "use_grouped_topk": "CPURouter routes otherwise than DeepSeek's",
        "weight": "mlp.gate has no weight of torch.bfloat16",
        "rotary_emb": "Identity is not a plain rotary embedding",
    }


@pytest.fixture(scope="module")
def generated(
    models: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """By the type of the cache; other models, and these with requests one by one. All engines in
    one process: the second finds what the first has packed."""
    questions = {
        cache: ask(models, "v3-w8a8", arguments=CPU_MLA | {"kv_cache_dtype": cache})
        for cache in CACHES
    }
    questions["v2lite-w8a8"] = ask(models, "v2lite-w8a8")
    for model in ("v3-w8a8", "v2lite-w8a8"):
        rounds = [[prompt] for prompt in eight()]
        questions[f"{model}, one by one"] = ask(models, model, rounds=rounds)
    # vLLM's choice: AMX_MLA where there is AMX.
    questions["v2-w8a8"] = ask(models, "v2-w8a8", arguments={})
    scratch: Path = tmp_path_factory.mktemp("engine")
    answers = run_in_vllm("tests.engine.cpu.runs:generate_all", list(questions.values()), scratch)
    return dict(zip(questions, answers, strict=True))


@pytest.fixture(scope="module")
def unfused(
    models: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    questions = {name: ask(models, name) for name in ("v3-w8a8", "v2lite-w8a8")}
    questions["v2-w8a8"] = ask(models, "v2-w8a8", arguments={})
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(VARIABLE, "linear,attention")
        answers = run_in_vllm(
            "tests.engine.cpu.runs:generate_all",
            list(questions.values()),
            tmp_path_factory.mktemp("unfused"),
        )
    return dict(zip(questions, answers, strict=True))


@pytest.mark.parametrize("model", ["v3-w8a8", "v2lite-w8a8", "v2-w8a8"])
def test_fused_layers_generate_what_unfused_ones_do(
    generated: dict[str, Any], unfused: dict[str, Any], model: str
) -> None:
    fused = generated["auto" if model == "v3-w8a8" else model]
    assert any("decoder layers are fused" in line for line in fused["log"])
    assert unfused[model]["log"] == []
    assert agreed(fused, unfused[model], rerouted=2) > len(eight()) * TOKENS / 2


@pytest.mark.parametrize("model", ["v3-w8a8", "v2lite-w8a8"])
def test_a_request_gets_the_tokens_alone_that_it_gets_among_eight(
    generated: dict[str, Any], model: str
) -> None:
    together = generated["auto" if model == "v3-w8a8" else model]
    assert generated[f"{model}, one by one"]["tokens"] == together["tokens"]


def test_an_engine_holds_1_85_times_as_many_latents(generated: dict[str, Any]) -> None:
    assert generated[INT8]["block_size"] == generated["auto"]["block_size"]
    assert generated[INT8]["blocks"] >= 1.85 * generated["auto"]["blocks"]


def test_a_prompts_first_token_does_not_depend_on_the_cache(generated: dict[str, Any]) -> None:
    """Prefill computes from the prompt alone; a prompt of one token is decoded."""
    first = [
        [tokens[0] for tokens in answer["tokens"][1:]]
        for answer in (generated[cache] for cache in CACHES)
    ]
    assert first[0] == first[1]


def test_packed_experts_are_mapped_and_nothing_is_left_to_vllm(generated: dict[str, Any]) -> None:
    for answer in (generated[cache] for cache in CACHES):
        assert [line.split(";")[0] for line in answer["log"]] == ["tunan: decoder layers are fused"]
        names = [Path(file).name for file in answer["files"]]
        for layer in (1, 2):
            for part in ("gate_up", "down"):
                assert f"model.layers.{layer}.mlp.experts.{part}.bin" in names


def test_experts_in_unfused_layers_are_refused_by_a_compiled_engine(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "linear,attention")
    compiled = {"model": models["v3-w8a8"], "arguments": CPU_MLA | {"enforce_eager": False}}
    question = [compiled | {"prompts": prompts()[:1]}]
    with pytest.raises(ProcessFailed, match="compiled around quantised experts"):
        run_in_vllm("tests.engine.cpu.runs:generate_all", question, tmp_path)
