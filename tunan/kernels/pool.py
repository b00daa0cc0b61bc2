"""The threads that kernels run on."""

import ctypes
from dataclasses import dataclass

from tunan.errors import UsageError
from tunan.kernels import library


@dataclass(frozen=True)
class PoolConfig:
    """Threads of this process's kernels.

    threads: how many, the calling thread included. cpus: one for each; thread i is bound to
    cpus[i], but the calling thread, thread 0, binds itself. spin_us: how long, in microseconds, an
    idle thread waits awake for the next layer's loop before it sleeps.
    """

    threads: int = 1
    cpus: tuple[int, ...] | None = None
    spin_us: int = 50


def configure_pool(config: PoolConfig) -> None:
    """Replaces the threads. No kernel may be running.

    Raises UsageError for impossible numbers, OutsideError if the system allows no more threads,
    KernelsUnavailableError.
    """
    cpus = None
    if config.cpus is not None:
        if len(config.cpus) != config.threads:
            raise UsageError(f"{len(config.cpus)} CPUs for {config.threads} threads; give one each")
        cpus = (ctypes.c_int * config.threads)(*config.cpus)
    configure = library.function(
        "tunan_pool_configure", ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int
    )
    library.check(configure(config.threads, cpus, config.spin_us))


def pool_threads() -> int:
    """Threads in use, the calling one included. Raises KernelsUnavailableError."""
    return int(library.function("tunan_pool_threads", ctypes.c_int)())
