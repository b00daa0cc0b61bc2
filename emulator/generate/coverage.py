"""What becomes of each NPU operator that vllm-ascend calls: writes `../OPERATORS.md`.

`python coverage.py [--check]`, in an environment that has vllm-ascend. The calls are read from its
sources. What is said of each is in `../coverage.txt`, a line an operator: name, state and what
answers (the aclnn or ATB operator, a stand-in, or the reason). A call without a line is an error,
as is a line without a call.
"""

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

EMULATOR = Path(__file__).parents[1]
STATES = {
    "tested": "runs; compared with a reference in tests/ascend",
    "runs": "runs; no test of its own",
    "stand-in": "a stand-in runs (tunan_emulator)",
    "refused": "refused: the reason is given",
}
CALL = re.compile(
    r"torch_npu\.(?P<npu>_?npu_\w+)|torch_npu\.(?P<atb>atb\.\w+)"
    r"|torch\.ops\.(?P<ops>(?:npu|atb|_C_ascend)\.\w+)"
)


def called(package: Path) -> Counter[str]:
    """How often each operator is called in the package's Python sources, by `namespace.name`."""
    found: Counter[str] = Counter()
    for source in package.rglob("*.py"):
        for match in CALL.finditer(source.read_text(encoding="utf-8")):
            name = match["ops"] or match["atb"] or f"npu.{match['npu']}"
            found[name] += 1
    return found


def described(text: str) -> dict[str, tuple[str, str]]:
    """Name -> (state, what answers)."""
    lines: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, state, what = line.split(maxsplit=2)
        if state not in STATES:
            sys.exit(f"coverage.txt: {state!r} is no state ({', '.join(STATES)}) in: {line}")
        lines[name] = (state, what)
    return lines


def page(calls: Counter[str], lines: dict[str, tuple[str, str]]) -> str:
    """The table as Markdown, the most called first."""
    silent, gone = sorted(calls.keys() - lines.keys()), sorted(lines.keys() - calls.keys())
    if silent or gone:
        sys.exit(f"coverage.txt: no line for {silent}; no call of {gone}")
    states = Counter(state for state, _ in lines.values())
    rows = [
        f"| `{name}` | {count} | {lines[name][0]} | {lines[name][1]} |"
        for name, count in sorted(calls.items(), key=lambda item: (-item[1], item[0]))
    ]
    kinds = [f"| {state} | {states[state]} | {meaning} |" for state, meaning in STATES.items()]
    return "\n".join(
        [
            "# The NPU operators that vllm-ascend 0.23.0 calls",
            "",
            "Made by `generate/coverage.py` from `coverage.txt` and the installed vllm-ascend.",
            "",
            "| state | operators | |",
            "|---|---|---|",
            *kinds,
            "",
            "| operator | calls in its sources | state | what answers |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    spec = importlib.util.find_spec("vllm_ascend")
    if spec is None or spec.origin is None:
        sys.exit("coverage.py: vllm-ascend must be installed")
    lines = described((EMULATOR / "coverage.txt").read_text(encoding="utf-8"))
    text = page(called(Path(spec.origin).parent), lines)
    file = EMULATOR / "OPERATORS.md"
    if "--check" not in sys.argv:
        file.write_text(text, encoding="utf-8")
    elif file.read_text(encoding="utf-8") != text:
        sys.exit("OPERATORS.md is not what generate/coverage.py writes: run it")


if __name__ == "__main__":
    main()
