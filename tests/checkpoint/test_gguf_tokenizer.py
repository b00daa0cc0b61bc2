import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.models import write_llama
from tunan.checkpoint.gguf_tokenizer import PATTERNS, tokenizer_files
from tunan.errors import CheckFailedError, UsageError

PATH = Path("m.gguf")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A byte-level vocabulary as GGUF metadata holds it."""
    model = write_llama(tmp_path_factory.mktemp("hf"))
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    return {
        "general.architecture": "llama",
        "llama.context_length": 2048,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "original": Tokenizer.from_str(json.dumps(tokenizer)),
    }


def built(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_files(PATH, metadata)["tokenizer.json"].decode())


def pieces(metadata: dict[str, Any], pre: str, text: str) -> list[str]:
    tokenizer = built(metadata | {"tokenizer.ggml.pre": pre})
    assert tokenizer.pre_tokenizer is not None
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("text", ["hello  world", "你好, 3.14\n\tx", "a<｜User｜>b", "it's"])
def test_the_rebuilt_tokenizer_agrees_with_the_original(
    vocabulary: dict[str, Any], text: str
) -> None:
    ours, original = built(vocabulary), vocabulary["original"]
    assert ours.encode(text).ids == original.encode(text).ids
    assert ours.decode(ours.encode(text).ids) == original.decode(original.encode(text).ids)


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "it's 2024  ok", ["it", "'s", "Ġ2024", "Ġ", "Ġok"]),
        ("smollm", "it's 2024  ok", ["it", "'s", "Ġ", "2", "0", "2", "4", "Ġ", "Ġok"]),
        ("llama-bpe", "IT'S 2024!\n", ["IT", "'S", "Ġ", "202", "4", "!Ċ"]),
        ("qwen2", "a 2024", ["a", "Ġ", "2", "0", "2", "4"]),
        ("deepseek-r1-qwen", "a 20", ["a", "Ġ", "2", "0"]),
        ("deepseek-v3", "a 2024 foo.bar", ["a", "Ġ", "202", "4", "Ġfoo", ".bar"]),
        ("deepseek-llm", "Ab c, 12\n", ["Ab", "Ġc", ",", "Ġ", "12", "Ċ"]),
        ("deepseek-coder", "x, 12\n", ["x", ",", "Ġ", "1", "2", "Ċ"]),
    ],
)
def test_text_is_cut_as_the_vocabulary_was_learned(
    vocabulary: dict[str, Any], pre: str, text: str, expected: list[str]
) -> None:
    assert pieces(vocabulary, pre, text) == expected


@pytest.mark.parametrize("pre", PATTERNS)
def test_nothing_is_lost_in_cutting(vocabulary: dict[str, Any], pre: str) -> None:
    text = "Hello, 世界! 12345\r\n\t x² 𝐀 — “q” it's 한국어  "
    tokenizer = built(vocabulary | {"tokenizer.ggml.pre": pre})
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_control_tokens_are_special_and_user_defined_ones_are_not(
    vocabulary: dict[str, Any],
) -> None:
    types = list(vocabulary["tokenizer.ggml.token_type"])
    types[3] = 4
    tokenizer = built(vocabulary | {"tokenizer.ggml.token_type": types})
    special = {
        index: token.special for index, token in tokenizer.get_added_tokens_decoder().items()
    }
    assert special[0] is True
    assert special[3] is False


def test_a_begin_token_is_added_where_the_file_says_so(vocabulary: dict[str, Any]) -> None:
    assert built(vocabulary).encode("a").ids[0] != 0
    asked = built(vocabulary | {"tokenizer.ggml.add_bos_token": True})
    assert asked.encode("a").ids[0] == 0
    assert asked.encode("a", add_special_tokens=False).ids[0] != 0


def test_every_end_token_stops_the_generation(vocabulary: dict[str, Any]) -> None:
    files = tokenizer_files(PATH, vocabulary | {"tokenizer.ggml.eot_token_id": 3})
    assert json.loads(files["generation_config.json"]) == {
        "bos_token_id": 0,
        "eos_token_id": [1, 3],
    }


def test_the_chat_template_is_carried(vocabulary: dict[str, Any]) -> None:
    files = tokenizer_files(PATH, vocabulary | {"tokenizer.chat_template": "{{ messages }}"})
    config = json.loads(files["tokenizer_config.json"])
    assert config["chat_template"] == "{{ messages }}"
    assert config["model_max_length"] == 2048


def test_a_sentencepiece_vocabulary_merges_by_score() -> None:
    tokens = ["<unk>", "<s>", "</s>", "<0xE4>", "<0xBD>", "<0xA0>", "▁", "a", "b", "ab", "▁ab"]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1],
        "tokenizer.ggml.scores": [0.0] * 6 + [-5.0, -4.0, -4.0, -1.0, -2.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tokenizer = built(metadata)
    assert tokenizer.encode("ab ab").tokens == ["<s>", "▁ab", "▁ab"]
    assert tokenizer.encode("你", add_special_tokens=False).tokens[1:] == [
        "<0xE4>",
        "<0xBD>",
        "<0xA0>",
    ]
    assert tokenizer.decode(tokenizer.encode("ab ab").ids) == "ab ab"


@pytest.mark.parametrize(
    ("change", "kind", "complaint"),
    [
        ({"tokenizer.ggml.pre": "novel"}, UsageError, "pre-tokenizer 'novel'; Tunan knows"),
        ({"tokenizer.ggml.model": "bert"}, UsageError, "tokenizer 'bert'"),
        ({"tokenizer.ggml.tokens": []}, UsageError, "no tokenizer in this"),
        ({"tokenizer.ggml.merges": ["a zzz"]}, CheckFailedError, "merge 'a zzz'"),
        ({"tokenizer.ggml.eos_token_id": 10**9}, CheckFailedError, "eos token id"),
        ({"tokenizer.ggml.token_type": [1]}, CheckFailedError, "types missing"),
        ({"tokenizer.ggml.tokens": 5}, CheckFailedError, "tokenizer.ggml.tokens"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(
    vocabulary: dict[str, Any], change: dict[str, Any], kind: type[Exception], complaint: str
) -> None:
    with pytest.raises(kind) as caught:
        tokenizer_files(PATH, vocabulary | change)
    assert complaint in str(caught.value)
