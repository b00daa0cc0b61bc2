"""Who wrote a line, when, and at which level."""

import pytest

from tunan.diagnosis.log_line import LogLine, log_line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "(Worker_TP1 pid=8) ERROR 11-30 21:25:27 [core.py:9] KeyError: 1",
            LogLine("Worker_TP1", "KeyError: 1", "8", "", "11-30 21:25:27", "ERROR"),
        ),
        (
            "\x1b[0;36m(EngineCore pid=3)\x1b[0;0m INFO 11-30 21:25:27 [a.py:1] hello",
            LogLine("EngineCore", "hello", "3", "", "11-30 21:25:27", "INFO"),
        ),
        (
            "[rank3]:[W1130 21:25:20.368605901 NPU.cpp:168] Warning: padded",
            LogLine("", "Warning: padded", "", "3", "11-30 21:25:20", "WARNING"),
        ),
        ("[rank2]: ValueError: x", LogLine("", "ValueError: x", "", "2")),
        (
            "(VllmWorker TP0 pid=8) ERROR 11-30 21:25:27 [core.py:9] KeyError: 15",
            LogLine("VllmWorker TP0", "KeyError: 15", "8", "", "11-30 21:25:27", "ERROR"),
        ),
        (
            "(EngineCore_1 pid=3) (VllmWorker rank=0 pid=8) ERROR 11-30 21:25:27 [m.py:492] "
            "KeyError: 16",
            LogLine("VllmWorker rank=0", "KeyError: 16", "8", "", "11-30 21:25:27", "ERROR"),
        ),
        (
            "(NPURayWorkerWrapper pid=8, ip=10.0.0.7) ERROR 11-30 21:25:27 worker_base.py:572] "
            "KeyError: 17",
            LogLine("NPURayWorkerWrapper", "KeyError: 17", "8", "", "11-30 21:25:27", "ERROR"),
        ),
        (
            "ERROR 11-30 21:25:27 engine.py:387] KeyError: 18",
            LogLine("", "KeyError: 18", "", "", "11-30 21:25:27", "ERROR"),
        ),
        (
            "2026-11-30T10:00:00.123456789Z stderr F (APIServer pid=1) KeyError: 2",
            LogLine("APIServer", "KeyError: 2", "1"),
        ),
        (
            "Nov 30 10:00:00 node7 tunan[55]: (EngineCore pid=1) KeyError: 3",
            LogLine("EngineCore", "KeyError: 3", "1"),
        ),
        ("engine-1  | ValueError: y", LogLine("", "ValueError: y")),
        (
            "[pod/r1-0/vllm] (EngineCore pid=1) KeyError: 5",
            LogLine("EngineCore", "KeyError: 5", "1"),
        ),
        (
            r'{"log":"\u001b[36m(EngineCore pid=1)\u001b[0m KeyError: \"6\"\n","stream":"stderr"}',
            LogLine("EngineCore", 'KeyError: "6"', "1"),
        ),
        ('{"log":"KeyError: 7', LogLine("", "KeyError: 7")),
        (r'{"log":"KeyError: \"8\u00', LogLine("", r"KeyError: \"8\u00")),
        ('{"note":"KeyError: 9"}', LogLine("", '{"note":"KeyError: 9"}')),
        (
            '{"time":"2026-11-30T10:00:00Z","log":"(EngineCore pid=1) KeyError: 10\\n"}',
            LogLine("EngineCore", "KeyError: 10", "1"),
        ),
        (
            '{"_PID": "7", "MESSAGE": "(EngineCore pid=1) KeyError: 11"}',
            LogLine("EngineCore", "KeyError: 11", "1"),
        ),
        (
            "Nov 30 10:00:00.123456 node7 tunan[55]: (EngineCore pid=1) KeyError: 12",
            LogLine("EngineCore", "KeyError: 12", "1"),
        ),
        (
            "2026-11-30T10:00:00+0800 node7 tunan[55]: ValueError: 13",
            LogLine("", "ValueError: 13"),
        ),
        ("[1,0]<stderr>:ValueError: 14", LogLine("", "ValueError: 14")),
        ("[default3]:[rank3]: ValueError: 15", LogLine("", "ValueError: 15", "", "3")),
        (
            "deepseek-0 vllm (Worker_TP1 pid=8) ERROR 11-30 21:25:27 [core.py:9] KeyError: 16",
            LogLine("Worker_TP1", "KeyError: 16", "8", "", "11-30 21:25:27", "ERROR"),
        ),
        (
            "Loading: 50%|##\rLoading: 100%|####\r(EngineCore pid=1) KeyError: 17\r",
            LogLine("EngineCore", "KeyError: 17", "1"),
        ),
        (
            "\x1b[2K\x1b[?25h(EngineCore pid=1) KeyError: 18",
            LogLine("EngineCore", "KeyError: 18", "1"),
        ),
        (
            "(EngineCore pid=1) (RayWorkerWrapper pid=4, ip=10.0.0.2) KeyError: 19",
            LogLine("RayWorkerWrapper", "KeyError: 19", "4"),
        ),
        (
            "(EngineCore pid=1) RuntimeError: (RayWorkerWrapper pid=4) died",
            LogLine("EngineCore", "RuntimeError: (RayWorkerWrapper pid=4) died", "1"),
        ),
        (
            "(RayWorkerWrapper pid=4, ip=10.0.0.2) KeyError: 4",
            LogLine("RayWorkerWrapper", "KeyError: 4", "4"),
        ),
        (
            "EI0002: [PID: 27593] 2026-11-30-22:49:27.969.806 timed out",
            LogLine(
                "",
                "EI0002: [PID: 27593] 2026-11-30-22:49:27.969.806 timed out",
                "27593",
                "",
                "11-30 22:49:27",
            ),
        ),
        ("INFO:     Started server", LogLine("", "INFO:     Started server", level="INFO")),
    ],
)
def test_a_line_is_taken_apart(line: str, expected: LogLine) -> None:
    assert log_line(line) == expected


def test_a_rank_that_names_itself_is_as_deep_as_a_worker() -> None:
    assert log_line("[rank2]: x").depth == log_line("(Worker_TP0 pid=1) x").depth == 3


@pytest.mark.parametrize(
    "process", ["VllmWorker TP0", "VllmWorker rank=0", "NPURayWorkerWrapper", "Worker_DP0_TP6_EP6"]
)
def test_workers_of_every_release_are_below_the_engine(process: str) -> None:
    assert log_line(f"({process} pid=8) KeyError: 1").depth == 3
