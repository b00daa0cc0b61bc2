"""A diagnosis for people, in English or Chinese, and for programs."""

from collections.abc import Iterator, Mapping

from tunan.diagnosis.advice import Advice
from tunan.diagnosis.diagnose import Diagnosis
from tunan.diagnosis.entry import Language, Text
from tunan.diagnosis.fallbacks import replacement_of
from tunan.diagnosis.findings import Finding
from tunan.diagnosis.knowledge import knowledge

LONGEST = 300  # characters of a log's line that are shown

_WORDS: Mapping[str, Text] = {
    "cause": Text(en="cause", zh="原因"),
    "unknown": Text(en="not known; likeliest cause", zh="未知错误，最可能的原因"),
    "wrappers": Text(
        en="not in the log, which only repeats that something failed: a process was killed (`dmesg "
        "-T | tail`: out of memory?), or the beginning of the log is missing",
        zh="日志里没有，只有转述：进程被杀（`dmesg -T | tail` 看是否内存不足），或日志缺了开头",
    ),
    "codes only": Text(
        en="not known beyond the codes below; what the log says beside them may tell more",
        zh="除下面的错误码外未知；看日志里错误码旁边的文字",
    ),
    "clean": Text(en="no error found", zh="没有发现错误"),
    "where": Text(en="where", zh="位置"),
    "said": Text(en="said", zh="原文"),
    "why": Text(en="why", zh="说明"),
    "do": Text(en="do", zh="处理"),
    "set": Text(en="set", zh="设置"),
    "look": Text(en="look", zh="查看"),
    "codes": Text(en="codes", zh="错误码"),
    "first": Text(en="first to fail", zh="最先失败"),
    "others": Text(en="also", zh="另有"),
    "repeated": Text(en="stepped over", zh="已跳过"),
    "notices": Text(en="notice", zh="提示"),
    "fallbacks": Text(en="on the CPU", zh="在 CPU 上"),
    "collect": Text(en="collect", zh="收集"),
    "read": Text(en="read", zh="已读"),
    "lines": Text(en="lines", zh="行"),
    "times": Text(en="times", zh="次"),
}
# What to have at hand when an error is reported that is not known.
COLLECT: tuple[Text, ...] = (
    Text(
        en="the whole log of every rank and machine, from its start (`serve` names it)",
        zh="每个 rank、每台机器从头开始的完整日志（`serve` 会打印路径）",
    ),
    Text(
        en="on Ascend ~/ascend/log (plog) of the same time, with ASCEND_GLOBAL_LOG_LEVEL=1",
        zh="昇腾上同一时段的 ~/ascend/log（plog），并设 ASCEND_GLOBAL_LOG_LEVEL=1",
    ),
    Text(
        en="`npu-smi info`, `npu-smi info -t proc-mem -i N` and `dmesg -T | tail -100`",
        zh="`npu-smi info`、`npu-smi info -t proc-mem -i N` 和 `dmesg -T | tail -100`",
    ),
    Text(
        en="`pip list | grep -iE 'torch|vllm|triton'`, CANN's version.cfg, the deployment file",
        zh="`pip list | grep -iE 'torch|vllm|triton'`、CANN 的 version.cfg、部署文件",
    ),
    Text(
        en="one more run with ASCEND_LAUNCH_BLOCKING=1 and --enforce-eager",
        zh="加 ASCEND_LAUNCH_BLOCKING=1 和 --enforce-eager 再跑一次",
    ),
)


def text(diagnosis: Diagnosis, language: Language) -> str:
    """Lines of `label: what`, the cause first."""
    return "\n".join(
        f"{_WORDS[label].of(language)}{': ' if language == 'en' else '：'}{_one_line(said)}"
        for label, said in _lines(diagnosis, language)
    )


def _one_line(said: str) -> str:
    """What comes from a log may hold control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in said)


def _lines(diagnosis: Diagnosis, language: Language) -> Iterator[tuple[str, str]]:
    yield from _head(diagnosis, language)
    yield from _rest(diagnosis, language)
    times = _WORDS["times"].of(language)
    known = {entry.id: entry for entry in knowledge().entries}
    for name, count in diagnosis.notices.items():
        if name != "operator-on-cpu":
            entry = known[name]
            yield "notices", f"{name} ({count} {times}): {entry.fix.of(language)}"
    for operator, count in diagnosis.fallbacks.items():
        yield "fallbacks", f"{operator} ({count} {times}): {replacement_of(operator).of(language)}"
    yield "read", f"{diagnosis.lines} {_WORDS['lines'].of(language)}, {diagnosis.size / 1e6:.1f} MB"


def _head(diagnosis: Diagnosis, language: Language) -> Iterator[tuple[str, str]]:
    cause = diagnosis.cause
    if cause is None:
        beyond = "wrappers" if diagnosis.repeated else "codes only"
        label = "clean" if diagnosis.verdict == "clean" else beyond
        yield "cause", _WORDS[label].of(language)
    elif cause.entry is None:
        yield "unknown", cause.text[:LONGEST]
        yield "where", _place(diagnosis, cause)
    else:
        yield "cause", f"{cause.entry.id} ({cause.entry.component})"
        yield "where", _place(diagnosis, cause)
        yield "said", cause.text[:LONGEST]
        yield "why", cause.entry.cause.of(language)
        for advice in diagnosis.advice:
            yield _advised(advice, language)
        yield "do", cause.entry.fix.of(language)
    if diagnosis.verdict == "unknown":
        for thing in COLLECT:
            yield "collect", thing.of(language)


def _advised(advice: Advice, language: Language) -> tuple[str, str]:
    why = advice.why.of(language)
    if not advice.setting:
        return "look", why
    key = f"{advice.key}: {advice.value} / " if advice.key else ""
    return "set", f"{key}{advice.setting} ({why})"


def _rest(diagnosis: Diagnosis, language: Language) -> Iterator[tuple[str, str]]:
    for code in diagnosis.codes:
        yield "codes", f"{code.code}: {code.meaning.of(language)}"
    first = diagnosis.first
    if first and first is not diagnosis.cause:
        yield "first", f"{_place(diagnosis, first)}: {first.text[:LONGEST]}"
    for other in diagnosis.others:
        if other.entry:
            yield "others", f"{other.entry.id}, {_place(diagnosis, other)}"
    if diagnosis.repeated:
        counts = (f"{name} ({count})" for name, count in diagnosis.repeated.items())
        yield "repeated", ", ".join(counts)


def _place(diagnosis: Diagnosis, finding: Finding) -> str:
    where = diagnosis.where(finding)
    named = [f"{where['log']}:{where['line']}"]
    named += [f"{name} {where[name]}" for name in ("pid", "rank", "device") if name in where]
    named[1:1] = [str(where["process"])] if "process" in where else []
    return ", ".join([*named, *([str(where["time"])] if "time" in where else [])])


def as_json(diagnosis: Diagnosis, language: Language) -> dict[str, object]:
    """All of it; texts in one language."""
    return {
        "verdict": diagnosis.verdict,
        "cause": _finding(diagnosis, diagnosis.cause, language),
        "first_to_fail": _finding(diagnosis, diagnosis.first, language),
        "others": [_finding(diagnosis, other, language) for other in diagnosis.others],
        "advice": [
            {
                "key": advice.key or None,
                "setting": advice.setting or None,
                "value": advice.value,
                "why": advice.why.of(language),
            }
            for advice in diagnosis.advice
        ],
        "codes": {code.code: code.meaning.of(language) for code in diagnosis.codes},
        "stepped_over": diagnosis.repeated,
        "notices": diagnosis.notices,
        "cpu_fallbacks": [
            {
                "operator": operator,
                "count": count,
                "replacement": replacement_of(operator).of(language),
            }
            for operator, count in diagnosis.fallbacks.items()
        ],
        "collect": [t.of(language) for t in COLLECT] if diagnosis.verdict == "unknown" else [],
        "settings": diagnosis.settings,
        "lines": diagnosis.lines,
        "bytes": diagnosis.size,
    }


def _finding(
    diagnosis: Diagnosis, finding: Finding | None, language: Language
) -> dict[str, object] | None:
    if finding is None:
        return None
    entry = finding.entry
    return {
        "id": entry.id if entry else None,
        "component": entry.component if entry else None,
        **diagnosis.where(finding),
        "text": finding.text,
        "cause": entry.cause.of(language) if entry else None,
        "fix": entry.fix.of(language) if entry else None,
        "numbers": dict(finding.parts),
        "source": entry.source if entry else None,
    }
