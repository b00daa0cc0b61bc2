"""Reads deploy.yaml (or JSON) into a `Deployment`; every mistake is one line with its place."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from tunan.confidential import hidden, is_secret_option, names_a_secret, without_secrets
from tunan.config.deployment import Deployment
from tunan.config.pipeline import is_pipeline_file, pipeline_to_deployment
from tunan.errors import UsageError
from tunan.small_file import read_small

Keys = tuple[str | int, ...]


def load_deployment(path: Path, overrides: Mapping[str, Any] | None = None) -> Deployment:
    """The deployment in `path`, with `overrides` (nested, `None` leaves out) on top.

    Raises `UsageError` naming file, line and key.
    """
    document, lines = _read(path)
    return deployment_from(_merge(document, overrides or {}), origin=str(path), lines=lines)


def deployment_from(
    values: Mapping[str, Any], origin: str, lines: Mapping[Keys, int] | None = None
) -> Deployment:
    """Checks `values` and makes them a `Deployment`. Raises `UsageError`."""
    if is_pipeline_file(values):
        values = pipeline_to_deployment(values, origin)
    try:
        return Deployment.model_validate(values)
    except ValidationError as error:
        raise UsageError(_describe(error, values, origin, lines or {})) from None


def _read(path: Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    try:
        text = read_small(path, "a deployment file").decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name an existing deployment file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text, so not a deployment file") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path}: not valid YAML: {_without_secrets(error)}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: a deployment file must be a mapping with `model:` in it")
    return document, _key_lines(node, (), {}, str(path), set())


def _key_lines(
    node: Any, at: Keys, found: dict[Keys, int], origin: str, seen: set[int]
) -> dict[Keys, int]:
    """Line (from 1) of every key and item; a key given twice is refused here.

    What an alias stands for is `seen` once: it may hold itself.
    """
    if id(node) in seen:
        return found
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, key.value)
            if here in found:
                raise UsageError(
                    f"{origin}:{key.start_mark.line + 1}: `{_dotted(here)}` is given twice "
                    f"(first on line {found[here]}); keep one"
                )
            found[here] = key.start_mark.line + 1
            _key_lines(value, here, found, origin, seen)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            found[(*at, i)] = value.start_mark.line + 1
            _key_lines(value, (*at, i), found, origin, seen)
    return found


def without_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` without what is None and without sections that are empty then."""
    return _merge({}, values)


def _merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            inner = merged.get(key)
            section = _merge(inner if isinstance(inner, Mapping) else {}, value)
            if section:
                merged[key] = section
            elif inner is None or inner == {}:
                merged.pop(key, None)
        elif value is not None:
            merged[key] = value
    return merged


def _describe(
    error: ValidationError, values: Mapping[str, Any], origin: str, lines: Mapping[Keys, int]
) -> str:
    """One line for the first mistake, and how many more there are."""
    details = error.errors(include_url=False, include_context=False)
    # A misspelt key makes the right one missing: the misspelling is what to mend.
    first = min(
        details,
        key=lambda detail: (
            detail["type"] != "extra_forbidden",
            lines.get(_known(detail["loc"], lines), 0),
        ),
    )
    at: Keys = first["loc"]
    line = lines.get(_known(at, lines))
    place = f"{origin}:{line}" if line else origin
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    shown = _shown("***" if _is_secret(at, values) else first.get("input"))
    return f"{place}: {_what(first['type'], first['msg'], at, shown)}{more}"


def _is_secret(at: Keys, values: Any) -> bool:
    """Whether what stands there is one by its key, or by the option before it in a list."""
    for key in at:
        if isinstance(key, str):
            if names_a_secret(key):
                return True
            values = values.get(key) if isinstance(values, Mapping) else None
        elif not isinstance(values, list | tuple) or key >= len(values):
            values = None
        elif key and is_secret_option(values[key - 1]):
            return True
        else:
            values = values[key]
    return False


def _what(kind: str, message: str, at: Keys, shown: str) -> str:
    name = _dotted(at)
    if kind == "extra_forbidden":
        known = _known_keys(at[:-1])
        close = difflib.get_close_matches(str(at[-1]), known, n=1, cutoff=0.5)
        hint = f"; did you mean `{close[0]}`?" if close else f"; known are {', '.join(known)}"
        return f"unknown key `{name}`{hint}"
    if kind == "missing":
        return f"`{name}` is missing"
    if kind in ("model_type", "model_attributes_type"):
        return f"`{name}` must be a section with keys, not {shown}"
    message = without_secrets(message.removeprefix("Value error, "))
    return f"`{name}`: {message[0].lower()}{message[1:]} (got {shown})"


def _without_secrets(error: Exception) -> str:
    """What the parser says; it shows a piece of the file."""
    return " ".join(" ".join(map(without_secrets, str(error).splitlines())).split())


def _shown(value: Any) -> str:
    text = repr(hidden(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _known(at: Keys, lines: Mapping[Keys, int]) -> Keys:
    """The longest beginning of `at` whose line is known."""
    while at and at not in lines:
        at = at[:-1]
    return at


def _known_keys(section: Sequence[str | int]) -> list[str]:
    model: Any = Deployment
    for key in (key for key in section if not isinstance(key, int)):  # an item is as its list says
        annotation = model.model_fields[key].annotation
        candidates = (annotation, *get_args(annotation))
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(model.model_fields)


def _dotted(at: Sequence[str | int]) -> str:
    return ".".join(hidden(str(key)) for key in at) or "(the file)"
