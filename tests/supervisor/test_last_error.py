"""Finding why an engine died in its log."""

from pathlib import Path

import pytest

from tunan.supervisor.last_error import root_cause, root_cause_in

WORKER = "(Worker pid=3) ERROR 11-30 16:53:37 [multiproc_executor.py:1063] "
CORE = "(EngineCore pid=2) ERROR 11-30 16:53:37 [core.py:1512] "
API = "(APIServer pid=1) ERROR 11-30 16:53:37 [async_llm.py:906] "


def test_the_deepest_process_is_believed_and_wrappers_are_skipped() -> None:
    log = [
        WORKER + "Traceback (most recent call last):",
        WORKER + "RuntimeError: Unsupported CPU attention configuration: head_dim=16",
        CORE + "RuntimeError: Worker failed with error 'Unsupported', please check the stack trace",
        API + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    ]
    assert root_cause(log) == "RuntimeError: Unsupported CPU attention configuration: head_dim=16"


def test_the_last_exception_of_that_process_is_the_cause() -> None:
    log = [CORE + "ValueError: first", CORE + "KeyError: 'second'", API + "ValueError: outer"]
    assert root_cause(log) == "KeyError: 'second'"


def test_a_plain_traceback_without_prefixes_is_read_too() -> None:
    log = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "ModuleNotFoundError: No module named 'vllm'",
    ]
    assert root_cause(log) == "ModuleNotFoundError: No module named 'vllm'"


def test_pydantics_second_line_says_what_is_wrong() -> None:
    log = [
        API + "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        API + "  Value error, Model architectures ['X'] are not supported. [type=value_error, "
        "input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]",
    ]
    assert root_cause(log) == "Model architectures ['X'] are not supported."


def test_a_refused_flag_is_the_cause() -> None:
    log = ["usage: tunan serve ... -- [-h]", "tunan serve ... --: error: unrecognized: --nope"]
    assert root_cause(log) == "unrecognized: --nope"


def test_a_log_without_an_error_names_none() -> None:
    assert root_cause(["(APIServer pid=1) INFO 11-30 16:53:37 [x.py:1] Started"]) is None


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("ValueError: long ago\n" + "x" * (300 * 1024) + "\nOSError: now\n")
    assert root_cause_in(log) == "OSError: now"


def test_a_missing_log_names_none(tmp_path: Path) -> None:
    assert root_cause_in(tmp_path / "none") is None


@pytest.mark.parametrize("text", ["\x00\xff", "ValueError: " + "y" * 5000])
def test_the_cause_is_one_short_line(tmp_path: Path, text: str) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(text.encode("latin-1"))
    cause = root_cause_in(log)
    assert cause is None or (len(cause) <= 500 and "\n" not in cause)


def test_our_own_errors_are_shown_without_their_class() -> None:
    line = "tunan.errors.CheckFailedError: /m/model-00001-of-00002.safetensors: is corrupt"
    assert root_cause([line]) == "/m/model-00001-of-00002.safetensors: is corrupt"
