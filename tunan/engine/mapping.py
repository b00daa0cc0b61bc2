"""Tensors that are pieces of a file, each in a memory mapping of its own.

A mapping lives exactly as long as its tensor: what the engine has consumed is unmapped
when the last reference goes, and what it keeps stays in the page cache, shared by every
process that maps it and free for the kernel to drop and read again. It is private and
writable: writing to such a tensor copies the page and never reaches the file.

Python's own `mmap` keeps a duplicate of the file descriptor with every mapping, thousands
for a large model, hence the direct call.
"""

import ctypes
import mmap
import os
import weakref

import torch

from tunan.checkpoint.safetensors_header import StoredTensor
from tunan.checkpoint.safetensors_source import TORCH_DTYPES

_MAP_NORESERVE = 0x4000  # Linux; Python's mmap module does not name it
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def map_tensor(descriptor: int, stored: StoredTensor) -> torch.Tensor:
    """The tensor at [stored.start, stored.stop) of an open file, in its stored dtype and shape.

    Nothing is read before it is touched. Raises OSError if the kernel refuses the mapping.
    """
    dtype = TORCH_DTYPES[stored.dtype]
    if stored.start == stored.stop:
        return torch.empty(stored.shape, dtype=dtype, device="cpu")
    first = stored.start - stored.start % mmap.PAGESIZE
    pages = _map(descriptor, first, stored.stop - first)
    raw = torch.frombuffer(pages, dtype=torch.uint8, offset=stored.start - first)
    if stored.start % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(stored.shape)


def _map(descriptor: int, offset: int, length: int) -> "ctypes.Array[ctypes.c_ubyte]":
    address = _libc.mmap(
        None,
        length,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | _MAP_NORESERVE,
        descriptor,
        offset,
    )
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    pages = (ctypes.c_ubyte * length).from_address(address)
    # At exit the kernel unmaps everything, after the last thread that may still read it.
    weakref.finalize(pages, _libc.munmap, address, length).atexit = False
    return pages
