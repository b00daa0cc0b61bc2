"""Which setting to change to which value."""

import io

import pytest

from tunan.diagnosis import Floors, diagnose_streams

SETTINGS = "INFO 11-30 21:25:27 [a.py:1] args: {'gpu_memory_utilization': 0.9, 'max_num_seqs': 64}"
ALLOCATION = (
    "RuntimeError: NPU out of memory. Tried to allocate {asked} (NPU 0; 60.00 GiB total capacity; "
    "{used} already allocated; {used} current active; {free} free; {reserved} reserved in total by "
    "PyTorch)"
)


def _advised(line: str, *before: str) -> list[str]:
    log = "\n".join([*before, line])
    found = diagnose_streams([("log", io.BytesIO(log.encode()))])
    return [advice.setting or advice.why.en for advice in found.advice]


def test_much_that_is_reserved_and_not_allocated_is_fragmentation() -> None:
    line = ALLOCATION.format(
        asked="2.00 GiB", used="40.00 GiB", free="1.00 GiB", reserved="55.00 GiB"
    )
    assert _advised(line) == ["PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"]


def test_a_shortage_lowers_the_utilization_by_what_is_missing() -> None:
    # 3 GiB of 60 are missing, 5 %, and 2 % are kept free.
    line = ALLOCATION.format(
        asked="4.00 GiB", used="57.00 GiB", free="1.00 GiB", reserved="57.50 GiB"
    )
    assert _advised(line, SETTINGS) == [
        "--gpu-memory-utilization=0.83",
        "--max-num-batched-tokens=1024",
    ]


def test_a_device_without_a_byte_left_is_short_of_all_that_was_asked_for() -> None:
    # 3 GiB of 60 are missing, 5 %, and 2 % are kept free.
    line = ALLOCATION.format(
        asked="3.00 GiB", used="59.00 GiB", free="0 bytes", reserved="59.50 GiB"
    )
    assert _advised(line, SETTINGS)[0] == "--gpu-memory-utilization=0.83"


@pytest.mark.parametrize(
    ("reserved", "advice"),
    [
        ("10.00 GiB", "another process or rank held the memory at that moment"),
        ("16.00 GiB", "so it may be fragmentation"),
    ],
)
def test_more_free_than_was_asked_for_is_no_shortage(reserved: str, advice: str) -> None:
    line = ALLOCATION.format(
        asked="12.00 GiB", used="10.00 GiB", free="20.00 GiB", reserved=reserved
    )
    found = diagnose_streams([("log", io.BytesIO(line.encode()))])
    told = [text.why.en for text in found.advice]
    assert told[0].startswith("no shortage by these figures: 12.00 GiB was asked for, 20.00 GiB is")
    assert advice in told[0]
    assert not any(text.startswith("shortage") for text in told)
    assert all(text.key == "" for text in found.advice)


def test_no_utilization_below_the_supervisors_floor_is_advised() -> None:
    taken = (
        "ValueError: Free memory on device npu:0 (5.1/60.96 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 54.86 GiB)."
    )
    assert _advised(taken) == [
        "55.86 GiB is held by others: end them, wait for the release, start again"
    ]
    line = ALLOCATION.format(
        asked="40.00 GiB", used="57.00 GiB", free="1.00 GiB", reserved="57.50 GiB"
    )
    assert _advised(line, SETTINGS)[0] == f"--gpu-memory-utilization={Floors().utilization:g}"
    at_floor = SETTINGS.replace("0.9", "0.5")
    assert _advised(line, at_floor) == ["--max-num-batched-tokens=1024"]


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens "
        "that can be stored in KV cache (8192).",
        "Value error, User-specified max_model_len (1024) is greater than the derived "
        "max_model_len (max_position_embeddings=4096 or model_max_length=None in config.json).",
        "[ERROR] HCCL_BUFFSIZE is too SMALL, k = 8, NEEDED_HCCL_BUFFSIZE((a * b) * 2) = 200MB, "
        "HCCL_BUFFSIZE=731MB.",
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel "
        "size (7).",
    ],
)
def test_figures_that_show_no_lack_advise_no_value(line: str) -> None:
    found = diagnose_streams([("log", io.BytesIO(line.encode()))])
    assert found.verdict == "known"
    assert found.advice == ()


def test_a_context_beyond_the_model_s_is_lowered_to_it() -> None:
    line = (
        "Value error, User-specified max_model_len (131072) is greater than the derived "
        "max_model_len (max_position_embeddings=4096 or model_max_length=None in config.json)."
    )
    assert _advised(line) == ["--max-model-len=4096"]


def test_memory_that_somebody_else_holds_is_looked_at_first() -> None:
    line = ALLOCATION.format(
        asked="4.00 GiB", used="30.00 GiB", free="1.00 GiB", reserved="30.00 GiB"
    )
    assert _advised(line)[0].startswith("29.00 GiB is held outside this process's pool")


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        (
            "ValueError: The model's max seq len (65536) is larger than the maximum number of "
            "tokens that can be stored in KV cache (40999).",
            ["--max-model-len=40960"],
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (32768), (8.00 "
            "GiB KV cache is needed, which is larger than the available KV cache memory (6.00 "
            "GiB). Try less.",
            ["--max-model-len=24576"],
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (32768), (8.00 "
            "GiB KV cache is needed, which is larger than the available KV cache memory (6.00 "
            "GiB). Based on it, the estimated maximum model length is 20000. Try less.",
            ["--max-model-len=19968"],
        ),
        (
            "[ERROR] HCCL_BUFFSIZE is too SMALL, k = 8, NEEDED_HCCL_BUFFSIZE((a * b) * 2) = 731MB, "
            "HCCL_BUFFSIZE=200MB.",
            ["HCCL_BUFFSIZE=731"],
        ),
        (
            "ValueError: Free memory on device npu:0 (39.00/60.00 GiB) on startup is less than "
            "desired GPU memory utilization (0.9, 54.00 GiB).",
            [
                "21.00 GiB is held by others: end them, wait for the release, start again",
                "--gpu-memory-utilization=0.65",
            ],
        ),
        (
            "RuntimeError: NPU function error: capture, error code is 207008",
            ["--max-cudagraph-capture-size=64"],
        ),
        (
            "RuntimeError: coreDim=131070 can't be greater than UINT16_MAX",
            ["--max-num-batched-tokens=1024"],
        ),
        (
            "ValueError: Total number of attention heads (28) must be divisible by tensor parallel "
            "size (8).",
            ["--tensor-parallel-size=7"],
        ),
    ],
)
def test_the_value_is_worked_out_from_the_message(line: str, settings: list[str]) -> None:
    assert _advised(line, SETTINGS) == settings


def test_what_the_profiling_run_lacked_is_told_with_the_cache_that_did_not_fit() -> None:
    log = (
        "INFO 11-30 21:25:27 [worker.py:3] Available KV cache memory: -0.87 GiB\n"
        "ValueError: No available memory for the cache blocks."
    )
    found = diagnose_streams([("log", io.BytesIO(log.encode()))])
    assert found.id == "vllm-no-cache-blocks"
    assert "0.87 GiB is missing" in found.advice[0].why.en


def test_a_message_without_numbers_still_has_advice() -> None:
    assert _advised("RuntimeError: NPU out of memory.", SETTINGS)[0] == (
        "--gpu-memory-utilization=0.85"
    )


@pytest.mark.parametrize(
    "line",
    [
        ALLOCATION.format(asked="1.2.3 GiB", used="1.00 GiB", free="0..0 GiB", reserved="1.00 GiB"),
        "ValueError: Free memory on device (1.2.3/60 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 54.00 GiB).",
        "ValueError: Free memory on device (0/0 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 54.00 GiB).",
        "ValueError: To serve at least one request with the model's max seq len (9), (0 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (0 GiB).",
    ],
)
def test_numbers_that_make_no_sense_are_no_error_of_ours(line: str) -> None:
    found = diagnose_streams([("log", io.BytesIO(line.encode()))])
    assert found.verdict == "known"
