"""Which of all that a log says is the cause."""

import io
import random
from pathlib import Path

import pytest

from tests.diagnosis.noise import quiet_log
from tunan.diagnosis import Diagnosis, diagnose, diagnose_streams, findings
from tunan.diagnosis.text import text
from tunan.errors import UsageError

WORKER0 = "(Worker_TP0 pid=7) ERROR 11-30 21:25:{s:02} [multiproc_executor.py:987] {text}"
WORKER1 = "(Worker_TP1 pid=8) ERROR 11-30 21:25:{s:02} [multiproc_executor.py:987] {text}"
CORE = "(EngineCore pid=2) ERROR 11-30 21:25:{s:02} [core.py:1195] {text}"
API = "(APIServer pid=1) ERROR 11-30 21:25:{s:02} [async_llm.py:704] {text}"
OUT_OF_MEMORY = (
    "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 30.00 GiB total capacity;"
    " 28.00 GiB already allocated; 28.00 GiB current active; 1.00 GiB free; 28.50 GiB reserved in"
    " total by PyTorch)"
)
TIMED_OUT = "RuntimeError: NPU function error: waited, error code is 507048"


def _of(*lines: str) -> Diagnosis:
    return diagnose_streams([("log", io.BytesIO("\n".join(lines).encode()))])


def _at(place: str, second: int, text: str) -> str:
    return place.format(s=second, text=text)


def test_a_rank_that_waited_is_not_the_cause_even_if_it_says_so_first() -> None:
    found = _of(_at(WORKER1, 1, TIMED_OUT), _at(WORKER0, 2, OUT_OF_MEMORY))
    assert found.id == "npu-out-of-memory"
    assert found.cause is not None
    assert found.where(found.cause)["process"] == "Worker_TP0"
    assert found.first is not None
    assert found.where(found.first)["process"] == "Worker_TP1"


def test_an_unknown_error_of_a_worker_beats_the_ranks_that_waited_for_it() -> None:
    found = _of(_at(WORKER0, 1, "KeyError: 'x'"), _at(WORKER1, 2, TIMED_OUT))
    assert (found.verdict, found.id) == ("unknown", "")
    assert found.cause is not None
    assert found.cause.text == "KeyError: 'x'"


def test_an_exception_that_the_lines_below_explain_is_not_unknown() -> None:
    found = _of(
        _at(WORKER0, 1, "RuntimeError: call failed"),
        _at(WORKER0, 1, "EJ0001: [PID: 7] 2026-11-30-21:25:01.000.001 the daemon is there"),
    )
    assert found.id == "hccp-still-running"
    assert found.findings.unknown == []


def test_a_warning_that_sounds_like_an_error_is_not_the_cause() -> None:
    warning = "(APIServer pid=1) WARNING 11-30 21:25:27 [a.py:1] Too many open files may come"
    assert _of(warning).verdict == "clean"
    assert _of(warning, _at(CORE, 2, "KeyError: 1")).verdict == "unknown"


def test_the_first_exception_after_the_engine_gave_up_is_the_likeliest() -> None:
    found = _of(
        _at(CORE, 1, "ValueError: of one request"),
        _at(CORE, 2, "EngineCore encountered a fatal error."),
        _at(CORE, 3, "IndexError: the real one"),
        _at(CORE, 4, "KeyError: while cleaning up"),
        _at(API, 5, "EngineDeadError: EngineCore encountered an issue."),
    )
    assert found.cause is not None
    assert found.cause.text == "IndexError: the real one"
    assert found.repeated == {"engine-dead": 1}


def test_wrappers_alone_say_that_the_error_is_not_in_the_log() -> None:
    found = _of(_at(API, 1, "RuntimeError: Engine core initialization failed. See root cause"))
    assert (found.verdict, found.cause) == ("unknown", None)


@pytest.mark.parametrize(
    "said",
    [
        "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
        "RuntimeError: Engine core process EngineCore_DP0 died unexpectedly.",
    ],
)
def test_a_process_that_is_gone_without_a_word_is_no_clean_log(said: str) -> None:
    assert _of(_at(CORE, 1, said)).id == "worker-vanished"


@pytest.mark.parametrize("said", ["EE1001: The argument is invalid.", "E40021: it did not compile"])
def test_codes_alone_are_no_clean_log(said: str) -> None:
    found = _of(said)
    assert (found.verdict, found.cause) == ("unknown", None)
    assert found.codes
    assert text(found, "en").startswith("cause: not known beyond the codes below")


def test_a_number_that_is_no_status_is_a_clean_log() -> None:
    assert _of("result: 123456 tokens").verdict == "clean"


def test_a_crash_in_native_code_is_the_cause_only_if_nothing_says_more() -> None:
    crash = "(Worker_TP0 pid=7) Fatal Python error: Segmentation fault"
    assert _of(crash).id == "native-crash"
    assert _of(crash, _at(WORKER0, 2, OUT_OF_MEMORY)).id == "npu-out-of-memory"


def test_pydantics_second_line_is_the_error() -> None:
    found = _of(
        _at(API, 1, "pydantic_core._pydantic_core.ValidationError: 1 validation error for Foo"),
        _at(API, 1, "  Value error, tokens must be even [type=value_error, input_value=3]"),
    )
    assert found.cause is not None
    assert found.cause.text == "tokens must be even"


def test_a_log_without_an_error_is_clean() -> None:
    found = diagnose_streams([("log", io.BytesIO(quiet_log(5).data))])
    assert (found.verdict, found.cause, found.first) == ("clean", None, None)


def test_an_empty_log_is_clean() -> None:
    assert _of("").verdict == "clean"


def test_logs_of_several_machines_are_put_in_order_by_time(tmp_path: Path) -> None:
    head, other = tmp_path / "head.log", tmp_path / "other.log"
    head.write_text(_at(WORKER0, 30, "EJ0002: [PID: 7] port is down") + "\n")
    other.write_text(_at(WORKER1, 10, OUT_OF_MEMORY) + "\n")
    found = diagnose([head, other])
    assert found.id == "npu-out-of-memory"
    assert found.cause is not None
    assert found.where(found.cause)["log"] == str(other)
    assert [entry.entry.id for entry in found.others if entry.entry] == ["network-port-down"]


def test_over_new_year_january_comes_last(tmp_path: Path) -> None:
    logs = []
    for name, time in (("a", "01-01 00:00:03"), ("b", "12-31 23:59:58")):
        (log := tmp_path / name).write_text(
            f"(Worker_{name} pid=7) ERROR {time} [x.py:1] {OUT_OF_MEMORY}\n"
        )
        logs.append(log)
    first = diagnose(logs).first
    assert first is not None
    assert first.place.process == "Worker_b"


def test_of_workers_with_one_name_each_has_its_own_rank_and_device() -> None:
    ray = "(EngineCore pid=2) (RayWorkerWrapper pid={n}, ip=10.0.0.{n}) "
    owner = "[ERROR] 2026-11-30-21:25:0{s} (PID:{n}, Device:{n}, RankID:{n}) ERR02200 DIST failed."
    found = _of(
        ray.format(n=4) + owner.format(s=1, n=4),
        ray.format(n=5) + owner.format(s=1, n=5),
        ray.format(n=4) + OUT_OF_MEMORY,
        ray.format(n=5) + TIMED_OUT,
        ray.format(n=5) + owner.format(s=3, n=5),
    )
    assert found.cause is not None
    where = found.where(found.cause)
    assert (where["process"], where["pid"]) == ("RayWorkerWrapper", "4")
    assert (where["rank"], where["device"]) == ("4", "4")


@pytest.mark.parametrize(
    "wrapped",
    [
        "{}",
        "\x1b[1;36m{}\x1b[0m\r",
        "Nov 30 10:00:00.123456 node7 tunan[55]: {}",
        "2026-11-30T10:00:00+0800 node7 tunan[55]: {}",
        "2026-11-30T10:00:00.123456789Z stderr F {}",
        '{{"time":"2026-11-30T10:00:00Z","stream":"stderr","log":"{}\\n"}}',
        '{{"level":"error","message":"{}"}}',
        "\x1b[33mvllm-1  |\x1b[0m {}",
        "[1,0]<stderr>:{}",
        "deepseek-0 vllm {}",
        "Loading: 10%|#\rLoading: 100%|###\r{}",
    ],
)
def test_the_rank_that_failed_first_is_named_whatever_carried_the_log(wrapped: str) -> None:
    lines = (_at(WORKER1, 1, OUT_OF_MEMORY), _at(WORKER0, 2, TIMED_OUT))
    found = _of(*(wrapped.format(line) for line in lines))
    assert (found.id, bool(found.advice)) == ("npu-out-of-memory", True)
    assert found.first is not None
    where = found.where(found.first)
    assert (where["process"], where["pid"], where["time"]) == ("Worker_TP1", "8", "11-30 21:25:01")


def test_the_hole_of_a_log_that_was_emptied_while_it_was_written_is_stepped_over() -> None:
    found = diagnose_streams(
        [("log", io.BytesIO(bytes(3 << 20) + _at(WORKER1, 1, OUT_OF_MEMORY).encode()))]
    )
    assert found.cause is not None
    assert found.where(found.cause)["process"] == "Worker_TP1"


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (random.Random(1).randbytes(100_000), "is not a text"),
        (OUT_OF_MEMORY.encode("utf-16-le"), "iconv -f UTF-16LE"),
        (OUT_OF_MEMORY.encode("utf-16-be"), "iconv -f UTF-16BE"),
        (OUT_OF_MEMORY.encode("utf-32"), "iconv -f UTF-32"),
        (b"LPKSHHRH" + bytes(100), "journalctl --file"),
    ],
    ids=["noise", "utf-16-le", "utf-16-be", "utf-32", "journal"],
)
def test_what_is_no_text_does_not_pass_for_a_log_without_an_error(data: bytes, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        diagnose_streams([("log", io.BytesIO(data))])


def test_noise_before_the_error_does_no_harm() -> None:
    noise = random.Random(1).randbytes(100_000)
    lines = noise + b"\n" + _at(WORKER1, 1, OUT_OF_MEMORY).encode()
    assert diagnose_streams([("log", io.BytesIO(lines))]).id == "npu-out-of-memory"


def test_a_log_without_times_is_not_taken_for_the_earliest(tmp_path: Path) -> None:
    plain, timed = tmp_path / "plain.log", tmp_path / "timed.log"
    plain.write_text("EJ0002: port is down\n")
    timed.write_text(_at(WORKER1, 10, OUT_OF_MEMORY) + "\n")
    assert diagnose([plain, timed]).id == "npu-out-of-memory"


def test_a_message_of_cann_is_given_to_the_process_whose_number_it_has() -> None:
    found = _of(
        _at(WORKER1, 1, "Traceback (most recent call last):"),
        "EJ0001: [PID: 8] 2026-11-30-21:25:01.000.001 the daemon is there",
        _at(WORKER1, 1, "RuntimeError: something failed"),
        _at(
            WORKER1,
            1,
            "[ERROR] 2026-11-30-21:25:27 (PID:8, Device:5, RankID:3) ERR00100 PTA call acl api",
        ),
    )
    assert found.cause is not None
    where = found.where(found.cause)
    assert (where["process"], where["device"], where["rank"]) == ("Worker_TP1", "5", "3")


def test_the_line_that_says_most_is_shown() -> None:
    found = _of(
        _at(WORKER1, 1, TIMED_OUT),
        _at(WORKER1, 1, "EI0002: Notify register times out: nothing from remote rank [6]."),
    )
    assert found.cause is not None
    assert found.cause.parts == {"remote": "6"}
    assert "rank 6" in found.advice[0].why.en


def test_codes_are_decoded_once_each() -> None:
    found = _of(*(_at(WORKER1, second, TIMED_OUT) for second in range(5)))
    assert [code.code for code in found.codes] == ["507048"]


def test_operators_that_ran_on_the_cpu_are_counted() -> None:
    warning = (
        "[W1130 21:25:20.1 Fallback.cpp:2] Warning: CAUTION: The operator '{}' is not currently "
        "supported on the NPU backend and will fall back to run on the CPU."
    )
    names = ["aten::fmax.out"] * 100 + ["aten::conv2d"] * 2 + ["aten::conv3d"]
    found = _of(*map(warning.format, names))
    assert found.fallbacks == {"aten::fmax.out": 100, "aten::conv2d": 2, "aten::conv3d": 1}
    assert found.verdict == "clean"


def test_of_a_crash_loop_every_line_is_counted() -> None:
    line = _at(API, 1, "EngineDeadError: EngineCore encountered an issue.")
    assert _of(*[line] * 500).repeated == {"engine-dead": 500}


def test_a_code_that_comes_late_is_told_from_the_many_before() -> None:
    many = [_at(WORKER1, 1, TIMED_OUT)] * 100
    found = _of(*many, _at(WORKER1, 2, TIMED_OUT.replace("507048", "207018")))
    assert found.id == "acl-device-memory-exhausted"
    assert [code.code for code in found.codes] == ["507048", "207018"]


def test_what_is_kept_does_not_grow_with_the_names_in_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(findings, "MOST_NAMES", 10)
    lines = [f"(P{number}x pid={number}) KeyError: {number}" for number in range(100)]
    found = _of(*lines, _at(WORKER1, 2, OUT_OF_MEMORY))
    assert len(found.findings.unknown) <= 10
    assert found.id == "npu-out-of-memory"


@pytest.mark.parametrize("data", [b"\x00\xff\n" * 50, b"Error" * 9000, b"[PID\n" * 9, b"\n" * 9])
def test_what_is_no_log_gives_an_answer(data: bytes) -> None:
    assert diagnose_streams([("log", io.BytesIO(data))]).verdict in ("clean", "unknown")
