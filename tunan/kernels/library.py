"""The shared library: found, loaded, and its status codes made into errors."""

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunan.errors import CheckFailedError, OutsideError, TunanError, UsageError

LIBRARY = Path(__file__).with_name("libtunan_kernels.so")
ISA_VARIABLE = "TUNAN_KERNELS_ISA"
ABI_VERSION = 3

# native/status.h
_ERRORS: dict[int, type[TunanError]] = {1: UsageError, 2: CheckFailedError, 3: OutsideError}


class KernelsUnavailableError(OutsideError):
    """The kernels were called where they cannot run. Exit status 3."""


def available() -> bool:
    """Whether the kernels can be called."""
    return unavailable_reason() is None


def unavailable_reason() -> str | None:
    """Why the kernels cannot be called, in one line; None if they can."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def library() -> ctypes.CDLL:
    """The loaded library. Raises KernelsUnavailableError."""
    loaded = _load()
    if isinstance(loaded, str):
        raise KernelsUnavailableError(loaded)
    return loaded


@functools.cache
def function(name: str, result: Any, *arguments: Any) -> Any:
    """The library's function of that name, C types declared. Raises KernelsUnavailableError."""
    found = getattr(library(), name)
    found.restype = result
    found.argtypes = arguments
    return found


def check(status: int) -> None:
    """Raises what a status other than 0 means, with the library's own explanation."""
    if status:
        raise _ERRORS.get(status, OutsideError)(last_error())


def last_error() -> str:
    """What the last call that failed on this thread has to say."""
    return str(function("tunan_last_error", ctypes.c_char_p)().decode())


def supported_isas() -> Sequence[str]:
    """Instruction sets that this CPU runs, oldest first. Raises KernelsUnavailableError."""
    names: bytes = function("tunan_isa_supported", ctypes.c_char_p)()
    return names.decode().split(",")


def selected_isa() -> str:
    """The instruction set in use. Raises KernelsUnavailableError."""
    name: bytes = function("tunan_isa_selected", ctypes.c_char_p)()
    return name.decode()


def select_isa(name: str | None) -> None:
    """Uses one of `supported_isas()` from here on; None: the newest. No kernel may be running.

    Weights packed before may be of another layout, which linear layers refuse. Raises UsageError
    for an unknown name, OutsideError for one that this CPU lacks.
    """
    check(function("tunan_isa_select", ctypes.c_int, ctypes.c_char_p)((name or "").encode()))


@functools.cache
def _load() -> ctypes.CDLL | str:
    if not LIBRARY.exists():
        return f"{LIBRARY} is missing: run make kernels (it needs g++ and cmake)"
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return f"{LIBRARY} cannot be loaded: {error}"
    if not hasattr(loaded, "tunan_abi_version") or loaded.tunan_abi_version() != ABI_VERSION:
        return f"{LIBRARY} is of another version: run make kernels"
    return _refused_isa(loaded) or loaded


def _refused_isa(loaded: ctypes.CDLL) -> str | None:
    loaded.tunan_last_error.restype = ctypes.c_char_p
    if loaded.tunan_isa_select(os.environ.get(ISA_VARIABLE, "").encode()) == 0:
        return None
    return f"{ISA_VARIABLE}: {loaded.tunan_last_error().decode()}"
