"""Prometheus metrics of NPUs and their host, under the names that Ascend's npu-exporter uses."""
