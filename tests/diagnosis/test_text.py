"""What people and programs get to read."""

import io
import json

from tunan.diagnosis import Diagnosis, diagnose_streams
from tunan.diagnosis.text import as_json, text

FALLBACK = (
    "CAUTION: The operator 'aten::fmax.out' is not currently supported on the NPU backend and will "
    "fall back to run on the CPU."
)


def _of(*lines: str) -> Diagnosis:
    return diagnose_streams([("log", io.BytesIO("\n".join(lines).encode()))])


def test_both_languages_have_the_same_lines() -> None:
    found = _of(FALLBACK, "RuntimeError: NPU out of memory.", "error code is 207018", "ERR00100")
    english, chinese = text(found, "en").splitlines(), text(found, "zh").splitlines()
    assert len(english) == len(chinese)
    assert english[0] == "cause: npu-out-of-memory (torch_npu)"
    assert chinese[0] == "原因：npu-out-of-memory (torch_npu)"
    assert any(line.startswith("set: memory.utilization: 0.87 / --gpu-") for line in english)


def test_an_unknown_error_says_what_to_collect() -> None:
    shown = text(_of("KeyError: 'x'"), "en")
    assert "not known; likeliest cause: KeyError: 'x'" in shown
    assert shown.count("collect: ") >= 4


def test_a_fallback_comes_with_its_replacement() -> None:
    assert "on the CPU: aten::fmax.out (1 times): torch.maximum" in text(_of(FALLBACK), "en")


def test_control_characters_of_a_log_do_not_reach_the_terminal() -> None:
    shown = text(_of("KeyError: '\x1b]0;title\x07 \x9b2J'"), "en")
    assert shown.replace("\n", "").isprintable()


def test_json_has_the_cause_and_the_advice() -> None:
    content = json.loads(json.dumps(as_json(_of("RuntimeError: NPU out of memory."), "zh")))
    assert content["verdict"] == "known"
    assert content["cause"]["id"] == "npu-out-of-memory"
    assert (content["cause"]["log"], content["cause"]["line"]) == ("log", 1)
    assert content["advice"][0]["key"] == "memory.utilization"
    assert "设备" in content["cause"]["cause"]
