"""Fills templates: the shell script of an installation out of its steps."""

import re
from collections.abc import Mapping

from tunan.install.facts import DATA, steps
from tunan.install.plan import Plan, values_of

_NAME = re.compile(r"@([A-Z_]+)@")
_TEMPLATES = DATA / "templates"


def filled(template: str, values: Mapping[str, str]) -> str:
    """The text of `templates/TEMPLATE`; a name without a value is a `KeyError`, our own mistake."""
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return _NAME.sub(lambda found: values[found[1]], text)


def script(plan: Plan) -> str:
    """The shell script that installs, or that fills the folder of Python packages."""
    values = values_of(plan)
    if plan.fills_wheels:
        names = steps().wheels_cpu if plan.is_cpu else of_chip(steps().wheels, plan)
        more = ["project.sh"] if plan.is_cpu else ["get_wheels.sh"]
        parts = ["begin_wheels.sh", *more], ["end_wheels.sh"]
    else:
        names = _names(plan)
        parts = ["begin.sh", *_settings(plan)], []
    before, after = ("".join(filled(name, values) for name in part) for part in parts)
    return f"{before}{step_texts(names, values)}{after}"


def step_texts(names: tuple[str, ...], values: Mapping[str, str]) -> str:
    """The steps one after another, each with its number and title."""
    texts = [filled(f"steps/{name}.sh", values) for name in names]
    total = len(texts)
    return "".join(
        re.sub(r"\A# ", f"\n# {number}/{total}: ", text) for number, text in enumerate(texts, 1)
    )


def _settings(plan: Plan) -> list[str]:
    if plan.is_cpu:
        return ["project.sh", *(["offline.sh"] if plan.wheels else [])]
    from_where = ["offline.sh", "from_wheels.sh"] if plan.wheels else ["online.sh"]
    return ["begin_ascend.sh", *from_where]


def _names(plan: Plan) -> tuple[str, ...]:
    if plan.is_cpu:
        return steps().cpu
    return of_chip(steps().upgrade if plan.upgrade else steps().first, plan)


def of_chip(names: tuple[str, ...], plan: Plan) -> tuple[str, ...]:
    """The steps for a chip that may not be able to use Triton."""
    if plan.family.triton:
        return names
    return tuple("no_triton" if name == "triton" else name for name in names)
