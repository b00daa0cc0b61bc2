"""The audit for people and for programs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tunan.cli.table import render
from tunan.ops.auditing import Audit
from tunan.ops.device_facts import devices
from tunan.ops.placement import Row
from tunan.ops.quantised import TO_CONVERT
from tunan.ops.verdict import DTYPES_UNKNOWN, Fate

_FATES = {
    Fate.FUSED: "fused kernel",
    Fate.NPU: "own kernel",
    Fate.COMPOSED: "composed",
    Fate.CPU: "falls back to CPU",
    Fate.UNSUPPORTED: "unsupported",
}
_SHOWN = 4


def text(audit: Audit) -> str:
    """A table of layer kinds and parts, then what needs attention, then the crossings."""
    return "\n\n".join(section for section in _sections(audit) if section)


def _sections(audit: Audit) -> Iterator[str]:
    device = devices().targets[audit.target]
    yield (
        f"{audit.model} on {audit.target} ({device.name}), {audit.options.dtype}, "
        f"torch_npu {audit.options.torch_npu}"
    )
    if audit.quantised is not None:
        yield audit.quantised.summary
    if audit.replaced is not None:
        yield f"{len(audit.replaced.replaced)} modules replaced, {len(audit.replaced.kept)} kept"
    yield render(("layer", "part", "runs as", "operators a step", "how"), _parts(audit))
    attention = [row for row in audit.rows if row.fate in _ATTENTION]
    if attention:
        yield render(("what happens", "operators", "calls", "instead"), _reasons(attention))
    yield _where(audit)
    yield _crossings(audit)
    yield _summary(audit)


_ATTENTION = (Fate.COMPOSED, Fate.CPU, Fate.UNSUPPORTED)


def _parts(audit: Audit) -> list[tuple[str, ...]]:
    """One row a layer kind, part and fate of the last step."""
    groups: dict[tuple[str, str, Fate], list[Row]] = {}
    for row in audit.rows:
        if row.step == audit.steps[-1]:
            groups.setdefault((row.layer, row.unit or "other", row.fate), []).append(row)
    return [
        (
            layer,
            part,
            _FATES[fate],
            str(sum(row.count for row in rows)),
            _how(rows),
        )
        for (layer, part, fate), rows in groups.items()
    ]


def _how(rows: Sequence[Row]) -> str:
    if all(row.operator.startswith("aten::") for row in rows) and rows[0].fate is Fate.FUSED:
        return rows[0].replacement
    return _operators(rows)


def _reasons(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One row a reason; the operators' dtypes and shapes are in the JSON."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        reason = f"{_FATES[row.fate]}: {row.reason}"
        groups.setdefault((reason, row.replacement or "nothing known"), []).append(row)
    return [
        (reason, _operators(group), str(sum(row.count for row in group)), instead)
        for (reason, instead), group in groups.items()
    ]


def _operators(rows: Sequence[Row]) -> str:
    names = _unique(row.operator.removeprefix("aten::").partition(".")[0] for row in rows)
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _where(audit: Audit) -> str:
    return (
        f"on the NPU: {', '.join(audit.placement.npu) or 'nothing'}\n"
        f"on the host's cores: {', '.join(audit.placement.cpu)}"
    )


def _crossings(audit: Audit) -> str:
    lines = []
    for step in audit.steps:
        copies, size, microseconds = audit.placement.of_step(step)
        tokens = _tokens(audit, step)
        lines.append(
            f"{step}: {copies} copies between device and host, {size / tokens:,.0f} bytes a token, "
            f"about {microseconds / 1000:.2f} ms a step"
        )
    assumed = f"{audit.link_gbps:.1f} GB/s and {devices().crossing_us:.0f} us a copy, assumed"
    return "\n".join([*lines, f"(estimates: {assumed}; sources in --json)"])


def _tokens(audit: Audit, step: str) -> int:
    prompt = audit.options.prompt_tokens if step == "prefill" else 1
    return audit.options.batch * prompt if step != "forward" else 1


def _summary(audit: Audit) -> str:
    lines = ["every operator runs"]
    if audit.blocking:
        lines = list(_cannot_run(audit.blocking))
    plain = [r for r in audit.rows if r.fate is Fate.FUSED and r.as_written in _ATTENTION]
    if plain:
        fates = _unique(_FATES[row.as_written] for row in plain)
        lines.append(f"without the fused kernels {' or '.join(fates)}: {_operators(plain)}")
    unknown = [row for row in audit.rows if row.reason == DTYPES_UNKNOWN]
    if unknown:
        lines.append(f"a kernel, but its dtypes are not known: {_operators(unknown)}")
    return "\n".join(lines)


def _cannot_run(blocking: Sequence[Row]) -> Iterator[str]:
    fp8 = [row for row in blocking if row.replacement == TO_CONVERT]
    if fp8:
        yield f"cannot run from FP8 weights: {_operators(fp8)}; {TO_CONVERT}"
    others = [row for row in blocking if row.replacement != TO_CONVERT]
    if others:
        yield f"cannot run, and nothing replaces it: {_operators(others)}"


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def as_json(audit: Audit) -> dict[str, Any]:
    """Everything: rows, placement, replacements, the facts used and where they are from."""
    facts = devices()
    return {
        "model": audit.model,
        "target": audit.target,
        "quantised": audit.quantised.summary if audit.quantised else None,
        "options": asdict(audit.options),
        "passed": not audit.blocking,
        "rows": [asdict(row) | {"crossing_bytes": row.crossing_bytes} for row in audit.rows],
        "placement": asdict(audit.placement),
        "per_step": {
            step: dict(
                zip(("copies", "bytes", "microseconds"), audit.placement.of_step(step), strict=True)
            )
            for step in audit.steps
        },
        "replacements": asdict(audit.replaced) if audit.replaced else None,
        "facts": {
            "kernels": audit.derived_from,
            "link": facts.targets[audit.target].link.model_dump(),
            "link_gbps_used": audit.link_gbps,
            "crossing_us": facts.crossing_us,
            "host": facts.host.model_dump(),
            "sources": facts.sources,
        },
    }
