"""Tools are bounded in time and never run twice at once; a machine is seen through its tools."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ascend.fakebin.machine import FakeMachine, a2
from tunan.ascend.probes import programs
from tunan.ascend.probes.npus import look_at_ecc, look_at_npus, look_at_topology
from tunan.ascend.probes.sight import Sight, recorded, this_machine

FAKEBIN = Path(__file__).parents[1] / "ascend/fakebin"


def seen(machine: FakeMachine, folder: Path) -> Sight:
    environment = {
        "PATH": f"{FAKEBIN}:{os.environ['PATH']}",
        "FAKE_MACHINE": str(machine.write(folder / "machine.json")),
        "FAKE_PYTHON": sys.executable,
        "SECRET": "hunter2",
    }
    root = folder / "root"
    root.mkdir(exist_ok=True)
    return this_machine(root, environment)


def script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def ended(process: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True


def test_what_npu_smi_prints_is_read(tmp_path: Path) -> None:
    sight = seen(a2(2), tmp_path)
    report = look_at_npus(sight).value
    assert report
    assert [device.npu for device in report.devices] == [0, 1]
    ecc = look_at_ecc(sight, report.devices[0]).value
    assert ecc
    assert ecc.double_bit == 0
    assert look_at_topology(sight).value


def test_a_failing_npu_smi_is_one_line_of_why(tmp_path: Path) -> None:
    machine = a2(1, failure="dcmi module initialize failed. ret is -8005")
    assert "-8005" in (look_at_npus(seen(machine, tmp_path)).error or "")


def test_without_npu_smi_it_is_said_to_be_missing(tmp_path: Path) -> None:
    assert look_at_npus(this_machine(tmp_path, {"PATH": ""})).error == "npu-smi is not installed"


def test_a_tool_that_hangs_is_ended(tmp_path: Path) -> None:
    ran = programs.run([script(tmp_path, "slow-tool", "sleep 60")], dict(os.environ), timeout=0.2)
    assert (ran.status, ran.error) == (None, "slow-tool gave no answer in 0.2 s")


def test_what_a_hanging_tool_started_is_ended_with_it(tmp_path: Path) -> None:
    tool = script(tmp_path, "forking-tool", f"sleep 60 & echo $! > {tmp_path}/child; wait")
    for timeout in (0.5, 5, 60):  # it has to have started one by then
        programs.run([tool], dict(os.environ), timeout)
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            break
    child = int((tmp_path / "child").read_text())
    while not ended(child):  # the kernel takes its time; pytest's time limit bounds this
        time.sleep(0.01)


def test_never_two_of_the_same_name_at_once(tmp_path: Path) -> None:
    # mkdir fails where the folder is there already: two at once would be seen.
    tool = script(
        tmp_path,
        "single-tool",
        f"mkdir {tmp_path}/lock || exit 9; sleep 0.1; rmdir {tmp_path}/lock",
    )
    statuses: list[int | None] = []

    def ask() -> None:
        statuses.append(programs.run([tool], dict(os.environ), timeout=60).status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [0, 0, 0, 0]


def test_a_question_is_asked_once() -> None:
    asked: list[str] = []
    sight = Sight(lambda kind, what: asked.append(f"{kind}:{what}"))
    assert sight.read("/proc/meminfo") is None
    assert sight.read("/proc/meminfo") is None
    assert asked == ["file:/proc/meminfo"]


def test_a_recorded_machine_answers_as_the_machine_did(tmp_path: Path) -> None:
    sight = seen(a2(2), tmp_path)
    report = look_at_npus(sight)
    assert look_at_npus(recorded(json.loads(json.dumps(sight.asked)))) == report


def test_a_variable_outside_the_list_is_not_read(tmp_path: Path) -> None:
    assert seen(a2(1), tmp_path).variable("SECRET") is None


@pytest.mark.parametrize(
    "answer", [None, 7, "text", [1], {"status": "x"}, {"output": 3, "error": None}]
)
def test_a_record_that_was_tampered_with_is_no_crash(answer: object) -> None:
    sight = recorded({"run:npu-smi info": answer, "names:/dev": answer, "disk:/": answer})
    assert look_at_npus(sight).value is None
    sight.names("/dev")
    sight.disk("/")


def test_a_tool_that_hangs_is_ended_before_its_time_when_this_program_ends(tmp_path: Path) -> None:
    started = tmp_path / "started"
    tool = script(tmp_path, "hanging-tool", f"echo $$ > {started}; sleep 600")
    answers: list[programs.Ran] = []
    thread = threading.Thread(target=lambda: answers.append(programs.run([tool], {}, 600)))
    thread.start()
    while not (started.exists() and started.read_text().endswith("\n")):
        time.sleep(0.01)
    programs.end_running()
    thread.join(30)
    assert answers == [programs.Ran(-9, "")]
    assert ended(int(started.read_text()))


def test_a_tool_that_was_only_being_started_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def slow_start(*given: Any, **more: Any) -> "subprocess.Popen[bytes]":
        process = start(*given, **more)
        programs.end_running()  # this program ends before it knows of its process
        return process

    monkeypatch.setattr("subprocess.Popen", slow_start)
    tool = script(tmp_path, "starting-tool", "sleep 600")
    assert programs.run([tool], {"PATH": os.environ["PATH"]}, 600) == programs.Ran(-9, "")


def test_a_tool_does_not_outlive_an_interrupt(tmp_path: Path) -> None:
    started = tmp_path / "started"
    tool = script(tmp_path, "interrupted-tool", f"echo $$ > {started}; sleep 600")

    def interrupt() -> None:
        while not (started.exists() and started.read_text().endswith("\n")):
            time.sleep(0.01)
        while programs._tools["interrupted-tool"].running is None:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    # It is ignored where these tests were started in the background of a script.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            programs.run([tool], {"PATH": os.environ["PATH"]}, 600)
    finally:
        signal.signal(signal.SIGINT, before)
    process = int(started.read_text())
    for _ in range(3000):
        if ended(process):
            break
        time.sleep(0.01)
    assert ended(process)
