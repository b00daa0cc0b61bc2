"""pyACL's runtime calls, over the emulator's libascendcl.so."""

import ctypes

_LIBRARY = ctypes.CDLL("libascendcl.so")


def memcpy(dst: int, dst_size: int, src: int, count: int, kind: int) -> int:
    """Copies `count` bytes between addresses; `kind` is aclrtMemcpyKind. Returns the status."""
    return int(
        _LIBRARY.aclrtMemcpy(
            ctypes.c_void_p(dst),
            ctypes.c_size_t(dst_size),
            ctypes.c_void_p(src),
            ctypes.c_size_t(count),
            ctypes.c_int(kind),
        )
    )
