"""The files that travel with the weights: config.json, the tokenizer and its like.

Only known names are carried, so that neither code (`*.py`) nor anything large and unknown
reaches a converted checkpoint.
"""

import json
from pathlib import Path
from typing import Any

from tunan.checkpoint.source import refuse_lfs_pointer
from tunan.errors import CheckFailedError, UsageError

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "tiktoken.model", "vocab.json")
CARRIED = (
    *TOKENIZERS,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE-CODE",
    "LICENSE-MODEL",
    "NOTICE",
)
# The largest tokenizer.json seen is 33 MB.
SIZE_LIMIT = 256 << 20


def read_config(path: Path) -> dict[str, Any]:
    """The content of a config.json, without `auto_map`, as the code it names is not carried.

    Raises `CheckFailedError` where the file is missing or no JSON object.
    """
    if not path.is_file():
        raise CheckFailedError(f"{path}: missing; it belongs beside the weights")
    config = parse_json_object(path)
    config.pop("auto_map", None)
    return config


def read_companions(directory: Path) -> dict[str, bytes]:
    """The files of `directory` to carry over, by name.

    Raises `UsageError` where there is no tokenizer among them, `CheckFailedError` where one
    is a git-lfs pointer or absurdly large.
    """
    found: dict[str, bytes] = {}
    for name in CARRIED:
        path = directory / name
        if not path.is_file():
            continue
        if path.stat().st_size > SIZE_LIMIT:
            raise CheckFailedError(
                f"{path}: larger than {SIZE_LIMIT >> 20} MiB; is it what it says?"
            )
        found[name] = path.read_bytes()
        refuse_lfs_pointer(path, found[name])
    if not any(name in found for name in TOKENIZERS):
        raise UsageError(
            f"{directory}: no tokenizer here; put tokenizer.json (or tokenizer.model) "
            "and tokenizer_config.json beside the weights"
        )
    return found


def parse_json_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises `CheckFailedError` where it is none."""
    data = path.read_bytes()
    refuse_lfs_pointer(path, data)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckFailedError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckFailedError(f"{path}: not a JSON object")
    return value
