"""Kernels for the CPU in C++ (native/), called through ctypes; what is of torch is in Python.

The library has every instruction set of the machine's architecture and chooses when it is loaded;
`TUNAN_KERNELS_ISA` names one of `supported_isas()` instead. Where the library is missing,
`available()` is false, `unavailable_reason()` says why, and all else goes on without it.
"""

from tunan.kernels.library import (
    KernelsUnavailableError,
    available,
    select_isa,
    selected_isa,
    supported_isas,
    unavailable_reason,
)
from tunan.kernels.pool import PoolConfig, configure_pool, pool_threads

__all__ = [
    "KernelsUnavailableError",
    "PoolConfig",
    "available",
    "configure_pool",
    "pool_threads",
    "select_isa",
    "selected_isa",
    "supported_isas",
    "unavailable_reason",
]
