"""What is shown has no secret in it, and all else as it was."""

from typing import Any

import pytest

from tunan.confidential import hidden, without_evident_secrets, without_secrets


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["--api-key", "a b", "--seed", 7], ["--api-key", "***", "--seed", 7]),
        (("--hf-token=a b", "x"), ["--hf-token=***", "x"]),
        ({"hf_token": "a", "url": "http://me:a@b"}, {"hf_token": "***", "url": "http://me:***@b"}),
        ({"api_keys": ["a", "b"], "port": 1}, {"api_keys": "***", "port": 1}),
        ({"a": [{"password": 12345}]}, {"a": [{"password": "***"}]}),
        ({"api_keys_file": "keys.txt", "max_tokens": 5}, None),
        (["--api-keys-file", "keys.txt", "--max-num-seqs", "8"], None),
        ("token_count: 17", None),
        (None, None),
    ],
)
def test_a_setting_is_shown_without_its_secrets(value: Any, shown: Any) -> None:
    assert hidden(value) == (value if shown is None else shown)


def test_what_holds_itself_comes_to_an_end() -> None:
    loop: list[Any] = ["x"]
    loop.append(loop)
    assert hidden(loop) == ["x", "..."]


def test_a_sentence_of_ours_keeps_the_word_behind_a_name() -> None:
    sentence = "the API key: wrong, as --api-key says; not sk-sesame-sesame"
    assert without_evident_secrets(sentence) == sentence.replace("sk-sesame-sesame", "***")
    assert "wrong" not in without_secrets("api_key: wrong")
