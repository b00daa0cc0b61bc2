"""A byte-level BPE tokenizer for test models, made from a rule and not from a corpus.

Its merges join any two lower-case letters, and a space with a letter; with the 256 bytes
and the special tokens that makes `VOCABULARY_SIZE`, which 64 does not divide, so that the
padding of a sharded vocabulary is tested too.
"""

import json
from pathlib import Path
from string import ascii_letters, ascii_lowercase

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
SPACE = "Ġ"  # how byte-level BPE writes a space
MERGES = [(a, b) for a in ascii_lowercase for b in ascii_lowercase]
MERGES += [(SPACE, letter) for letter in ascii_letters]
VOCABULARY_SIZE = 1000

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}{{ eos_token }}"
    "{% elif m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)


def write_tokenizer(directory: Path, vocabulary_size: int = VOCABULARY_SIZE) -> None:
    """Writes `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.

    Ids that the model has beyond the rule's tokens get unused special tokens, so that every
    id the model can emit decodes to something.
    """
    pieces = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += [a + b for a, b in MERGES]
    pieces += [f"<｜place▁holder▁no▁{n}｜>" for n in range(vocabulary_size - len(pieces))]
    if len(pieces) > vocabulary_size:
        raise ValueError(f"the test tokenizer needs {len(pieces)} tokens, not {vocabulary_size}")
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "bos_token": SPECIAL_TOKENS[0],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": SPECIAL_TOKENS[1],
            "model_max_length": 2048,
            "pad_token": SPECIAL_TOKENS[1],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    _write_json(directory / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
