"""The cause in logs that vLLM, vllm-ascend and torch_npu really wrote, on emulated devices.

`engine_logs` are logs of `tunan serve` with the fault that names the file (tests/ascend/
test_serve_faults.py), without the frames of tracebacks and what vLLM logs of its settings.
"""

from pathlib import Path

import pytest

from tunan.supervisor.last_error import root_cause, root_cause_in

LOGS = Path(__file__).with_name("engine_logs")
CAUSES = {
    "ecc": "NPU function error: HBM MULTI BIT ECC ERROR (error code 507054): EZ9999: The error "
    "from device(chipId:0, dieId:0), serial number is 1, hbm Multi-bit ECC error occurred, "
    "errorCode=0x80e01801",
    "exception": "ACL stream synchronize failed, error code:507015: EZ9999: The error from "
    "device(chipId:0, dieId:0), serial number is 1, there is an aicore error exception, "
    "errorCode=0x800000",
    "hccl-timeout": "NPU function error: "
    "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507048: EI0002: "
    "The wait execution of the Notify register times out. Reason: The Notify register has not "
    "received the Notify record from remote rank [0]. base information: [streamID:[0], taskID[0], "
    "tag[HcclAllReduce_/tunan_hccl_27592_14b38863d5ac68d4], "
    "AlgType(level 0-1-2):[fullmesh-ring-NHR].]",
    "lost": "ACL stream synchronize failed, error code:507010: EE9999: The error from "
    "device(chipId:0, dieId:0), serial number is 1, ts lost heartbeat, errorCode=0x7bc82",
    "missing": "operator RmsNorm failed: EZ3003: No supported Ops kernel and engine are found for "
    "[RmsNorm], optype [RmsNorm]: the emulator has aclnn operators only",
}


@pytest.mark.parametrize("fault", CAUSES)
def test_the_devices_own_words_are_the_cause(fault: str) -> None:
    assert root_cause_in(LOGS / f"{fault}.txt") == CAUSES[fault]


def test_every_log_is_looked_at() -> None:
    assert {log.stem for log in LOGS.iterdir()} == set(CAUSES)


FAILED = "RuntimeError: npuX:../torch_npu/a.cpp:1 NPU function error: {what}, error code is {code}"


def test_a_rank_that_waited_in_vain_is_not_the_cause() -> None:
    log = [
        "(Worker_TP1 pid=8) ERROR 11-30 21:25:27 [multiproc_executor.py:987] "
        + FAILED.format(what="HCCL timed out", code=507048),
        "(Worker_TP0 pid=7) ERROR 11-30 21:25:28 [multiproc_executor.py:987] "
        + FAILED.format(what="HBM MULTI BIT ECC ERROR", code=507054),
    ]
    cause = root_cause(log)
    assert cause is not None
    assert "HBM MULTI BIT ECC ERROR" in cause


def test_of_ranks_that_waited_for_each_other_the_one_with_a_message_is_told() -> None:
    log = [
        "(Worker_TP0 pid=7) ERROR 11-30 21:25:27 [multiproc_executor.py:987] "
        + FAILED.format(what="waited", code=507048),
        "(Worker_TP1 pid=8) ERROR 11-30 21:25:28 [multiproc_executor.py:987] "
        + FAILED.format(what="waited too", code=507048),
        "(Worker_TP1 pid=8) ERROR 11-30 21:25:28 [multiproc_executor.py:987] "
        "EI0002: [PID: 8] 2026-11-30-21:25:28.000.001 The wait timed out.",
    ]
    assert root_cause(log) == (
        "NPU function error: waited too, error code is 507048: EI0002: The wait timed out"
    )


def test_an_error_that_is_not_the_devices_is_left_to_the_other_rules() -> None:
    log = ["(EngineCore pid=2) ERROR 11-30 16:53:37 [core.py:1512] ValueError: bad shape"]
    assert root_cause(log) == "ValueError: bad shape"


def test_an_error_before_a_kill_is_not_its_cause(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("(APIServer pid=1) ERROR 11-30 16:53:37 [x.py:1] ValueError: of one request\n")
    assert root_cause_in(log) == "ValueError: of one request"
    assert root_cause_in(log, killed=True) is None
    with log.open("a") as file:
        file.write(
            "(EngineCore pid=2) ERROR 11-30 16:53:38 [core.py:1] EngineCore failed to start.\n"
        )
    assert root_cause_in(log, killed=True) == "ValueError: of one request"
