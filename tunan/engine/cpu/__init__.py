"""Tunan's CPU kernels inside vLLM: linear layers, int8 KV cache, fused decoder layers.

Everything here is a plugin of vLLM through its own registries (`registration.py`); what it
does not cover stays vLLM's, and one log line says why.
"""
