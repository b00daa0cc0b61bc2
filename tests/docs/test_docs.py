"""The documentation says what is: pages, links, commands, keys, defaults and figures."""

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from benchmarks import report
from tunan.cli.main import VERBS, build_parser
from tunan.config import Deployment

ROOT = Path(__file__).parents[2]
LANGUAGES = ("en", "zh")
PAGES = {language: sorted((ROOT / "docs" / language).glob("*.md")) for language in LANGUAGES}
TEXTS = [
    *(page for pages in PAGES.values() for page in pages),
    *ROOT.glob("README*.md"),
    ROOT / "AGENTS.md",
    ROOT / "emulator" / "README.md",
]
by_page = pytest.mark.parametrize("page", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
by_language = pytest.mark.parametrize("language", LANGUAGES)

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Where the tunan command ends: the shell's own, a comment, or what is the engine's.
COMMAND = re.compile(rf"\btunan ((?:{'|'.join(VERBS)})\b[^`|;&#>)\n]*)")


def test_both_languages_have_the_same_pages() -> None:
    names = {language: [page.name for page in pages] for language, pages in PAGES.items()}
    assert names["en"]
    assert names["en"] == names["zh"]


@pytest.mark.parametrize("name", [page.name for page in PAGES["en"]])
def test_both_languages_have_the_same_outline(name: str) -> None:
    """As many sections of each level, and in each the same code and as many rows of tables."""
    english, chinese = (
        _outline((ROOT / "docs" / language / name).read_text(encoding="utf-8"))
        for language in LANGUAGES
    )
    assert english == chinese


def _outline(text: str) -> list[tuple[str, int, list[str]]]:
    sections = re.split(r"(?m)^(#+) .*$", CODE.sub(_hide, text))
    return [
        (level, _rows(body), re.findall(r"\x00(.*?)\x00", body, re.DOTALL))
        for level, body in zip(sections[1::2], sections[2::2], strict=True)
    ]


def _hide(block: re.Match[str]) -> str:
    """A code block on one line, so that a comment in it is no heading; comments may differ."""
    commands = [re.sub(r"\s+#.*|\s{3,}.*", "", line) for line in block[1].splitlines()]
    drawing = any(character in block[1] for character in "─│├")
    return "" if drawing else f"\0{' / '.join(commands)}\0"


def _rows(body: str) -> int:
    return sum(line.startswith("|") for line in body.splitlines())


@by_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        file, _, fragment = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        if fragment:
            assert fragment in _anchors(linked), target


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_page
def test_every_command_is_one_that_tunan_takes(page: Path) -> None:
    for words in _commands(page.read_text(encoding="utf-8")):
        verb, options = _parser_of(words)
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in options, f"tunan {verb} has no {word}"


def _commands(text: str) -> Iterator[list[str]]:
    for command in COMMAND.findall(text.replace("\\\n", " ")):
        words = shlex.split(command.partition(" -- ")[0].replace("'", ""))
        if words[-1] == "--":
            words = words[:-1]
        yield words


def _parser_of(words: list[str]) -> tuple[str, set[str]]:
    """The verb (and its action, where it has some) and the options it takes."""
    parser, name = build_parser(), ""
    for word in words:
        actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if not actions or word not in actions[0].choices:
            break
        parser, name = actions[0].choices[word], f"{name} {word}".strip()
    return name, set(parser._option_string_actions)


@by_language
def test_every_option_is_documented(language: str) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES[language])
    for words in (*([verb] for verb in VERBS), ["config", "check"], ["ops", "audit"]):
        verb, options = _parser_of(words)
        for option in options - {"-h"}:
            assert re.search(rf"{option}(?![\w-])", text), f"{option} of tunan {verb}"


@by_language
def test_the_configuration_page_has_every_key_with_its_default(language: str) -> None:
    text = (ROOT / "docs" / language / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `([\w.]+)` \| ([^|]+) \|", text)
    assert {key: shown.strip("` ") for key, shown in rows} == _defaults(language)
    assert len(rows) == len(_defaults(language))


def _defaults(language: str) -> dict[str, str]:
    required = {"en": "required", "zh": "必填"}[language]
    deployment = Deployment.model_validate({"model": {"path": "/m"}})
    defaults = {key: _shown(value) for key, value in _leaves(deployment, "")}
    return defaults | {"model.path": required}


def _leaves(section: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value) if value is None or isinstance(value, bool | tuple) else str(value)


@by_page
def test_every_deployment_file_shown_is_valid(page: Path) -> None:
    import yaml

    from tunan.config import deployment_from

    for block in re.findall(r"(?ms)^```yaml\n(.*?)^```", page.read_text(encoding="utf-8")):
        deployment_from(yaml.safe_load(block), str(page))


@by_page
def test_every_file_of_the_project_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folders = "benchmarks|tunan|tests|scripts|requirements|emulator|deploy"
    for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", text):
        assert (ROOT / name).exists() or name.startswith("benchmarks/results/"), name
    for module in re.findall(r"-m (benchmarks\.\w+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module


@by_language
def test_the_benchmark_tables_are_those_of_the_results(language: str) -> None:
    """If not: `python -m benchmarks.report`, and read the text around the tables again."""
    text = (ROOT / "docs" / language / "benchmarks.md").read_text(encoding="utf-8")
    assert report.filled(text, language) == text
    marked = {name for _, name, _ in report.MARKED.findall(text)}
    assert {file.stem for file in report.RESULTS.glob("*.json")} <= marked


@pytest.mark.parametrize("page", report.PAGES)
def test_a_table_of_figures_anywhere_is_that_of_the_results(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert report.filled(text, report.PAGES[page]) == text


@by_page
def test_no_leftover_marks(page: Path) -> None:
    assert "@@" not in page.read_text(encoding="utf-8")
