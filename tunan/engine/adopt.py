"""Gives parameters the mapped file itself instead of a copy of it."""

import torch
from torch import nn

# Below this a copy is cheaper than a mapping of its own.
SMALLEST_ADOPTED = 64 << 10


def adopt(parameter: nn.Parameter, tensor: torch.Tensor) -> bool:
    """Makes `tensor` the parameter's storage, if it is the same in shape, dtype and device.

    A copy of the tensor onto such a parameter is then no work: PyTorch sees that source and
    destination are one. Returns whether it was done.
    """
    fits = (
        parameter.shape == tensor.shape
        and parameter.dtype == tensor.dtype
        and parameter.device == tensor.device
        and parameter.is_contiguous()
        and tensor.nbytes >= SMALLEST_ADOPTED
    )
    if fits:
        parameter.data = tensor
    return fits
