"""What to do about a cause of death that has a usual remedy: rules, tried in order."""

import re

_RULES: tuple[tuple[str, str], ...] = (
    (
        r"out of memory|No available memory for the cache blocks|less than desired GPU memory"
        r"|larger than the available KV cache memory",
        "lower memory.utilization, memory.kv_cache_gib, model.max_model_len or "
        "scheduler.max_num_batched_tokens, or spread it over more devices (parallel.tensor)",
    ),
    (
        r"not in libopapi\.so|No supported Ops kernel",
        "this CANN lacks the operator: install the CANN (and its operator package) that this "
        "torch_npu was released with",
    ),
    (
        r"ECC|507054",
        "the device's memory is damaged: take it out with parallel.devices, look at "
        "`npu-smi info -t ecc -i N`, and have it replaced if it comes again",
    ),
    (
        r"heartbeat|507010|device lost",
        "the device does not answer: look at `npu-smi info` and `dmesg`, reset it or restart the "
        "machine",
    ),
    (
        r"Notify register times out|EI0002|EI0006|507048|ffts\+? ?plus timeout|HCCL.*time",
        "look for the rank that failed or fell behind first, then at the links between the devices "
        "(`hccn_tool -i N -link -g`)",
    ),
    (
        r"507015|aicore error|AI ?Core exception",
        "run it once more with ASCEND_LAUNCH_BLOCKING=1 and --enforce-eager, which names the "
        "operator that fails",
    ),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in _RULES)


def with_next_step(cause: str) -> str:
    """`cause` without its full stop, with what to do about it if that is known."""
    if not cause.endswith(".."):  # an ellipsis says that there is more
        cause = cause.removesuffix(".")
    for pattern, advice in _COMPILED:
        if pattern.search(cause):
            return f"{cause}; {advice}"
    return cause
