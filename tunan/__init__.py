"""Serve DeepSeek models on Kunpeng and Ascend servers: see README.md."""

__version__ = "0.1.0"
