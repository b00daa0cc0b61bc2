"""Hearing in the log that the engine cannot go on."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from tunan.supervisor.fatal import FATAL_LINES, POLL_S, until_fatal


@pytest.mark.parametrize("line", FATAL_LINES)
async def test_each_of_vllms_last_words_is_heard(tmp_path: Path, line: str) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"(EngineCore pid=1) ERROR 11-30 21:25:27 [core.py:1197] {line}\n")
    await asyncio.wait_for(until_fatal(log), 60)


def test_they_are_in_vllms_sources() -> None:
    vllm = find_spec("vllm")
    assert vllm is not None
    assert vllm.submodule_search_locations
    folder = Path(vllm.submodule_search_locations[0]) / "v1"
    files = (folder / "engine" / "core.py", folder / "executor" / "multiproc_executor.py")
    sources = "".join(file.read_text() for file in files)
    for line in FATAL_LINES:
        assert line.removeprefix("Exception in thread ") in sources


async def test_a_line_that_is_written_in_two_parts_is_heard(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("all is well\nERROR EngineCore failed ")
    heard = asyncio.create_task(until_fatal(log))
    await asyncio.sleep(2 * POLL_S)
    assert not heard.done()
    with log.open("a") as file:
        file.write("to start.\n")
    await asyncio.wait_for(heard, 60)


@pytest.mark.parametrize("error", ["error code is 507054", "error code:507010"])
async def test_a_device_that_failed_in_any_rank_is_heard(tmp_path: Path, error: str) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"(Worker_TP1 pid=1) ERROR 11-30 21:25:27 [x.py:1] RuntimeError: a, {error}\n")
    await asyncio.wait_for(until_fatal(log), 60)


async def test_an_exception_of_one_call_to_a_worker_is_not_the_end(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "(Worker_TP0 pid=1) ERROR 11-30 21:25:27 [x.py:1] WorkerProc hit an exception.\n"
        "(Worker_TP0 pid=1) ERROR 11-30 21:25:27 [x.py:1] RuntimeError: error code is 161002\n"
    )
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(until_fatal(log), 3 * POLL_S)


@pytest.mark.parametrize("process", ["APIServer", "ApiServer_0"])
@pytest.mark.parametrize("line", [*FATAL_LINES, "error code is 507054"])
async def test_what_a_client_says_is_not_the_end(tmp_path: Path, line: str, process: str) -> None:
    log = tmp_path / "engine.log"
    server = f"({process} pid=1) WARNING 11-30 21:25:27 [hf.py:839] "
    log.write_text(f"{server}Chat template rejected the request: no role\n{server}{line}\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(until_fatal(log), 3 * POLL_S)


async def test_what_a_client_says_is_not_the_end_though_written_in_two_parts(
    tmp_path: Path,
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("(APIServer pid=1) INFO 11-30 21:25:27 [x.py:1] prompt: " + 100 * "a")
    heard = asyncio.create_task(until_fatal(log))
    await asyncio.sleep(2 * POLL_S)
    with log.open("a") as file:
        file.write(f"{FATAL_LINES[0]}\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(heard, 3 * POLL_S)


async def test_a_log_that_cannot_be_read_is_not_the_end() -> None:
    unreadable = Path("/proc/self/mem")  # opens, and fails to be read at its beginning
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(until_fatal(unreadable), 3 * POLL_S)
