"""The log of the CPU path. vLLM formats and shows only loggers below its own name."""

from vllm.logger import init_logger

logger = init_logger("vllm.tunan")
