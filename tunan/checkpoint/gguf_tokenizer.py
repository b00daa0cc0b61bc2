"""Hugging Face tokenizer files from the vocabulary in a GGUF file's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as splits

from tunan.errors import CheckFailedError, UsageError

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

# How text is cut before merging, by tokenizer.ggml.pre: the patterns the models' own
# tokenizer.json files use. A vocabulary cut in another way yields other tokens, hence no default.
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{PUNCTUATION_AND_SPACE}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{PUNCTUATION_AND_SPACE}"
# Letters that have a case, but for the mathematical ones.
CASED = r"(?:(?![\x{1D400}-\x{1D7FF}])[\p{Lu}\p{Ll}\p{Lt}])"
EAST_ASIAN = "[一-龥\u0800-一가-\ud7ff]+"
DEEPSEEK_V3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS: dict[str, tuple[str, ...]] = {
    "llama-bpe": (LLAMA3,),
    "llama3": (LLAMA3,),
    "llama-v3": (LLAMA3,),
    "qwen2": (QWEN2,),
    "deepseek-r1-qwen": (QWEN2,),
    "deepseek-v3": (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK_V3_WORDS),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?{CASED}+",
        "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"\s+$",
        EAST_ASIAN,
        r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}"),
}
# Byte-level BPE with GPT-2's own pattern, which `ByteLevel` brings; true: digits one by one first.
GPT2_STYLE = {"gpt-2": False, "smollm": True, "starcoder": True, "refact": True}
ADDS_BOS = ("llama-bpe", "llama3", "llama-v3", "deepseek-llm", "deepseek-coder", "deepseek-v3")


def tokenizer_files(path: Path, metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and generation_config.json.

    Raises `UsageError` for a kind of tokenizer Tunan does not know, `CheckFailedError`
    where the vocabulary is damaged.
    """
    vocabulary = _Vocabulary(path, metadata)
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer = _byte_level(vocabulary)
    elif model == "llama":
        tokenizer = _sentencepiece(vocabulary)
    else:
        raise UsageError(f"{path}: tokenizer {model!r}; Tunan reads 'gpt2' (BPE) and 'llama' (SPM)")
    tokenizer.add_special_tokens(vocabulary.added(CONTROL, special=True))
    tokenizer.add_tokens(vocabulary.added(USER_DEFINED, special=False))
    if tokenizer.get_vocab_size() != len(vocabulary.tokens):
        raise CheckFailedError(f"{path}: damaged vocabulary: its special tokens are not part of it")
    if vocabulary.adds("bos", model == "llama" or vocabulary.pre in ADDS_BOS):
        tokenizer.post_processor = _prepend(vocabulary, vocabulary.special_id("bos") or 0)
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False).encode(),
        "tokenizer_config.json": _json(_tokenizer_config(vocabulary, metadata)),
        "generation_config.json": _json(_generation_config(vocabulary)),
    }


class _Vocabulary:
    """The lists of the metadata, checked against each other."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self._metadata = metadata
        self.tokens: list[str] = self._list("tokens", str)
        self.types: list[int] = self._list("token_type", int) or [NORMAL] * len(self.tokens)
        self.scores: list[float] = self._list("scores", float)
        self.merges: list[str] = self._list("merges", str)
        self.pre = metadata.get("tokenizer.ggml.pre", "default")
        if not self.tokens:
            raise UsageError(f"{path}: no tokenizer in this GGUF file")
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens) or len(self.types) != len(self.tokens):
            raise CheckFailedError(f"{path}: damaged vocabulary: tokens twice or types missing")

    def special_id(self, role: str) -> int | None:
        """The id of the `bos`, `eos`, `unknown`, `padding`, `eot` ... token, if it has one."""
        index = self._metadata.get(f"tokenizer.ggml.{role}_token_id")
        if index is None:
            return None
        if type(index) is not int or not 0 <= index < len(self.tokens):
            raise CheckFailedError(f"{self.path}: damaged vocabulary: {role} token id {index!r}")
        return index

    def special(self, role: str) -> str | None:
        index = self.special_id(role)
        return None if index is None else self.tokens[index]

    def adds(self, role: str, by_default: bool) -> bool:
        wanted = self._metadata.get(f"tokenizer.ggml.add_{role}_token", by_default)
        return bool(wanted) and self.special(role) is not None

    def adds_space_prefix(self) -> bool:
        return bool(self._metadata.get("tokenizer.ggml.add_space_prefix", True))

    def added(self, kind: int, special: bool) -> list[AddedToken]:
        return [
            AddedToken(token, normalized=False, special=special)
            for token, of_kind in zip(self.tokens, self.types, strict=True)
            if of_kind == kind
        ]

    def merge_pairs(self) -> list[tuple[str, str]]:
        pairs = []
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            if left not in self.ids or right not in self.ids or left + right not in self.ids:
                raise CheckFailedError(f"{self.path}: damaged vocabulary: merge {merge!r}")
            pairs.append((left, right))
        return pairs

    def _list(self, key: str, of: type) -> list[Any]:
        value = self._metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(value, list) or not all(isinstance(item, of) for item in value):
            raise CheckFailedError(f"{self.path}: damaged vocabulary: tokenizer.ggml.{key}")
        return value


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    pre = vocabulary.pre
    cuts: list[Any]
    if pre in GPT2_STYLE:
        cuts = [splits.Digits(individual_digits=True)] if GPT2_STYLE[pre] else []
    elif pre in PATTERNS:
        cuts = [splits.Split(Regex(pattern), "isolated") for pattern in PATTERNS[pre]]
    else:
        known = ", ".join([*GPT2_STYLE, *PATTERNS])
        raise UsageError(f"{vocabulary.path}: pre-tokenizer {pre!r}; Tunan knows {known}")
    cuts.append(splits.ByteLevel(add_prefix_space=False, use_regex=pre in GPT2_STYLE))
    # Llama 3 takes a word that is in the vocabulary whole, whatever the merges would make of it.
    whole_words = PATTERNS.get(pre) == (LLAMA3,)
    tokenizer = Tokenizer(
        models.BPE(vocabulary.ids, vocabulary.merge_pairs(), ignore_merges=whole_words)
    )
    tokenizer.pre_tokenizer = splits.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    unknown = vocabulary.special("unknown")
    model = models.BPE(
        vocabulary.ids,
        vocabulary.merge_pairs() or _merges_from_scores(vocabulary),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces: list[Any] = [normalizers.Replace(" ", "▁")]
    restore: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.adds_space_prefix():
        spaces.insert(0, normalizers.Prepend("▁"))
        restore.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(restore)
    return tokenizer


def _merges_from_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """SentencePiece joins whichever two pieces make the piece with the best score."""
    ids = vocabulary.ids
    if len(vocabulary.scores) != len(ids):
        raise CheckFailedError(f"{vocabulary.path}: damaged vocabulary: no merges and no scores")
    ranked = []
    for token, index in ids.items():
        if vocabulary.types[index] != NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-vocabulary.scores[index], ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _prepend(vocabulary: _Vocabulary, index: int) -> processors.TemplateProcessing:
    token = vocabulary.tokens[index]
    return processors.TemplateProcessing(
        single=[token, "$A"],
        pair=[token, "$A", f"{token}:1", "$B:1"],
        special_tokens=[(token, index)],
    )


def _tokenizer_config(vocabulary: _Vocabulary, metadata: Mapping[str, Any]) -> dict[str, Any]:
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    config: dict[str, Any] = {
        f"{name}_token": vocabulary.special(role)
        for name, role in roles.items()
        if vocabulary.special(role) is not None
    }
    architecture = metadata.get("general.architecture")
    length = metadata.get(f"{architecture}.context_length")
    template = metadata.get("tokenizer.chat_template")
    if isinstance(length, int):
        config["model_max_length"] = length
    if isinstance(template, str):
        config["chat_template"] = template
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **config,
    }


def _generation_config(vocabulary: _Vocabulary) -> dict[str, Any]:
    ends = {vocabulary.special_id(role): None for role in ("eos", "eot", "eom")}
    stops = [index for index in ends if index is not None]
    config = {
        "bos_token_id": vocabulary.special_id("bos"),
        "eos_token_id": stops[0] if len(stops) == 1 else stops or None,
        "pad_token_id": vocabulary.special_id("padding"),
    }
    return {key: value for key, value in config.items() if value is not None}


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
