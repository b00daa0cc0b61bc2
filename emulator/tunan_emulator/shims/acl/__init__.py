"""The part of CANN's Python interface (pyACL) that vllm-ascend imports."""
