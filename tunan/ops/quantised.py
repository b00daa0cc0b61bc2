"""Which layers of a model are quantised, by its configuration, and what that means on Ascend.

Three descriptions are read: `quant_method: fp8` (as DeepSeek publishes V3 and R1),
compressed-tensors with int8 weights a channel and int8 inputs a token (W8A8, as `tunan convert
--quantize w8a8` writes), and ModelSlim's `quant_model_description.json` with W8A8_DYNAMIC.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tunan.checkpoint.architectures import has_experts, layer_of, number
from tunan.checkpoint.quantize.compressed_tensors import QUANT_METHOD as COMPRESSED_TENSORS
from tunan.checkpoint.quantize.modelslim import CACHE, DESCRIPTION_FILE, PLAIN, W8A8
from tunan.errors import CheckFailedError, UsageError

NO_FP8 = "FP8 weights have no kernels on Atlas A2, A3 and 310P"
TO_CONVERT = "tunan convert: makes bfloat16 of them, with --quantize w8a8 int8"
_LAYER_NUMBER = re.compile(r"(?<=^model\.layers\.)\d+")


@dataclass(frozen=True)
class Quantised:
    """The quantised layers of a model.

    `targets` and `ignore` are names of modules, `re:` and an expression, or the class `Linear`;
    with `described` the types of the tensors decide instead. `kinds` has for each kind of layer
    the numbers of the model's layers of that kind.
    """

    scheme: Literal["w8a8", "w8a8 by description", "fp8"]
    method: str
    kinds: tuple[tuple[int, ...], ...]
    targets: tuple[str, ...] = ("Linear",)
    ignore: tuple[str, ...] = ()
    described: Mapping[str, str] | None = None

    @property
    def summary(self) -> str:
        """What the head of the audit says."""
        if self.scheme == "fp8":
            return (
                f"linear layers and experts are quantised ({self.method}): {NO_FP8}; {TO_CONVERT}"
            )
        cache = self.described is not None and self.described.get("kv_cache_type") == CACHE
        return f"linear layers and experts are quantised ({self.method}): int8, as the rows say" + (
            "; the int8 cache's own operators are not audited" if cache else ""
        )

    def layers(self, path: str, repeats: int) -> tuple[int, int]:
        """Of `repeats` layers that the module at `path` stands for, how many have it quantised
        and how many have it as it is. `path` numbers the layers by their kind."""
        name = f"{path}.0.down_proj" if path.endswith(".experts") else path
        kind = layer_of(path + ".")
        if kind is None:
            return (repeats, 0) if self._covers(name) else (0, repeats)
        names = [_LAYER_NUMBER.sub(str(layer), name) for layer in self.kinds[kind]]
        quantised = sum(map(self._covers, names))
        return quantised, repeats - quantised

    def _covers(self, name: str) -> bool:
        if self.described is not None:
            return self.described.get(f"{name}.weight", PLAIN) == W8A8
        return _any_matches(name, self.targets) and not _any_matches(name, self.ignore)


def quantised(
    config: Mapping[str, Any], description: Mapping[str, str] | None = None
) -> Quantised | None:
    """What a configuration, or else ModelSlim's description, says is quantised; None if nothing.

    Raises UsageError for a way of quantising that is not audited.
    """
    settings = config.get("quantization_config") or config.get("compression_config")
    if settings is None or settings == {}:
        return _described(description, _kinds(config)) if description else None
    if not isinstance(settings, Mapping):
        raise CheckFailedError(f"config.json: quantization_config is {settings!r}, not an object")
    method = settings.get("quant_method")
    if method == "fp8":
        return _fp8(settings, _kinds(config))
    if method == COMPRESSED_TENSORS:
        return _compressed(settings, _kinds(config))
    raise _not_audited(f"quant_method {method!r}")


def read_description(path: Path) -> dict[str, str] | None:
    """ModelSlim's description beside a configuration (directory or file); None if there is none.

    Raises CheckFailedError if it is not a JSON object.
    """
    file = (path if path.is_dir() else path.parent) / DESCRIPTION_FILE
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckFailedError(f"{file}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckFailedError(f"{file}: a description is a JSON object")
    return content


def _fp8(settings: Mapping[str, Any], kinds: tuple[tuple[int, ...], ...]) -> Quantised:
    left = [*_names(settings, "modules_to_not_convert"), *_names(settings, "ignored_layers")]
    block = "block FP8" if settings.get("weight_block_size") else "FP8"
    parts = tuple(rf"re:(.*\.)?{re.escape(name)}(\..*)?$" for name in left)
    return Quantised("fp8", f"{block}, quant_method fp8", kinds, ignore=("lm_head", *parts))


def _compressed(settings: Mapping[str, Any], kinds: tuple[tuple[int, ...], ...]) -> Quantised:
    groups = settings.get("config_groups")
    found = list(groups.values()) if isinstance(groups, Mapping) else []
    if not found or not all(isinstance(group, Mapping) for group in found):
        raise CheckFailedError("config.json: quantization_config has no config_groups")
    schemes = {_scheme(group) for group in found}
    if len(schemes) > 1 or settings.get("kv_cache_scheme"):
        raise _not_audited(f"{COMPRESSED_TENSORS} with several schemes or a quantised cache")
    scheme = schemes.pop()
    if scheme is None:
        raise _not_audited(f"{COMPRESSED_TENSORS} other than W8A8 with dynamic inputs and FP8")
    targets = tuple(name for group in found for name in _names(group, "targets"))
    ignore = tuple(_names(settings, "ignore"))
    shown = "W8A8" if scheme == "w8a8" else "FP8"
    return Quantised(scheme, f"{COMPRESSED_TENSORS} {shown}", kinds, targets, ignore)


def _scheme(group: Mapping[str, Any]) -> Literal["w8a8", "fp8"] | None:
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping) or weights.get("num_bits") != 8:
        return None
    if weights.get("type") == "float":
        return "fp8"
    if not isinstance(inputs, Mapping) or weights.get("strategy") != "channel":
        return None
    int8 = weights.get("type") == inputs.get("type") == "int" and inputs.get("num_bits") == 8
    return "w8a8" if int8 and inputs.get("dynamic") and inputs.get("strategy") == "token" else None


def _described(
    description: Mapping[str, str], kinds: tuple[tuple[int, ...], ...]
) -> Quantised | None:
    types = {str(kind) for name, kind in description.items() if name.endswith(".weight")}
    if types - {W8A8, PLAIN}:
        raise _not_audited(f"{DESCRIPTION_FILE}: {', '.join(sorted(types - {W8A8, PLAIN}))}")
    if W8A8 not in types and description.get("kv_cache_type") != CACHE:
        return None
    return Quantised(
        "w8a8 by description", f"{DESCRIPTION_FILE}, {W8A8}", kinds, described=description
    )


def _not_audited(what: str) -> UsageError:
    return UsageError(
        f"not audited: {what}; audited are {COMPRESSED_TENSORS} W8A8, {DESCRIPTION_FILE} with "
        f"{W8A8}, FP8, and models that are not quantised"
    )


def _kinds(config: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    layers = range(number(config, "num_hidden_layers"))
    dense = tuple(layer for layer in layers if not has_experts(config, layer))
    experts = tuple(layer for layer in layers if has_experts(config, layer))
    return tuple(kind for kind in (dense, experts) if kind)


def _names(settings: Mapping[str, Any], key: str) -> Sequence[str]:
    value = settings.get(key) or []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise CheckFailedError(f"config.json: {key} of the quantisation must be a list of names")
    return value


def _any_matches(name: str, patterns: Sequence[str]) -> bool:
    return any(_matches(name, pattern) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    if not pattern.startswith("re:"):
        return pattern in ("Linear", name)
    try:
        return re.match(pattern.removeprefix("re:"), name) is not None
    except re.error as error:
        raise CheckFailedError(f"config.json: {pattern!r} is no expression ({error})") from error
