"""DeepSeek's block-wise FP8, dequantised on the way.

Each 128x128 block of an E4M3 weight `X.weight` has one float32 scale in
`X.weight_scale_inv`; the value is weight * scale. Blocks at the right and lower edge may
be partial, so 576 rows have 5 rows of scales.
Source: DeepSeek-V3 technical report (arXiv:2412.19437), section 3.3; its README_WEIGHTS.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tunan.checkpoint.source import Source, TensorInfo
from tunan.errors import CheckFailedError, UsageError

FP8_DTYPE = "F8_E4M3"
SCALE_SUFFIX = "_scale_inv"
SCALE_DTYPES = ("F32", "BF16", "F16")
# What each of the 256 bytes means. Looking them up is several times faster than the
# conversion PyTorch has for CPUs.
VALUES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


def dequantised(source: Source) -> Source:
    """`source` itself where it is not quantised, else one whose rows come dequantised.

    Raises `UsageError` for a quantisation other than block-wise FP8, `CheckFailedError`
    where a scale is missing, left over or has the wrong shape.
    """
    quantization = source.config.get("quantization_config")
    if not quantization:
        _refuse_unexplained_fp8(source)
        return source
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    if method != "fp8" or not quantization.get("weight_block_size"):
        raise UsageError(
            f"{source.path}: already quantised ({method!r}); Tunan converts "
            "unquantised and block-wise FP8 checkpoints, vLLM may serve this one as it is"
        )
    block = quantization["weight_block_size"]
    if not (isinstance(block, list) and len(block) == 2 and all(_is_size(n) for n in block)):
        raise CheckFailedError(f"{source.path}/config.json: weight_block_size is {block!r}")
    return BlockFP8Source(source, (block[0], block[1]))


class BlockFP8Source:
    """See `tunan.checkpoint.source.Source`; FP8 weights come as float32, their scales not at all.

    `rows` of such a weight must be asked for in multiples of the block's height.
    """

    def __init__(self, stored: Source, block: tuple[int, int]) -> None:
        self._stored = stored
        self._block = block
        self.path: Path = stored.path
        self.auxiliary = stored.auxiliary
        self.config: dict[str, Any] = {
            key: value for key, value in stored.config.items() if key != "quantization_config"
        }
        scales = {name for name in stored.tensors if name.endswith(SCALE_SUFFIX)}
        self._quantised = {
            name for name, info in stored.tensors.items() if info.dtype == FP8_DTYPE
        } - scales
        for name in self._quantised:
            self._check_scale(stored.tensors[name])
        for scale in scales:
            if scale.removesuffix(SCALE_SUFFIX) not in self._quantised:
                info = stored.tensors[scale]
                raise CheckFailedError(f"{info.file}: scale '{scale}' has no FP8 weight to scale")
        self.tensors: dict[str, TensorInfo] = {
            name: self._info(info) for name, info in stored.tensors.items() if name not in scales
        }

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop), float32 where the weight is FP8. An FP8 NaN stays a NaN."""
        weight = self._stored.rows(name, start, stop)
        if name not in self._quantised:
            return weight
        height, width = self._block
        if start % height:
            raise ValueError(f"{name}: row {start} is not at the start of a block of {height}")
        first, last = start // height, -(-stop // height)
        scale = self._stored.rows(name + SCALE_SUFFIX, first, last).float()
        values = np.take(VALUES, weight.view(torch.uint8).numpy())
        return scale_blocks(torch.from_numpy(values), scale, height, width)

    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return self._stored.fingerprint()

    def release(self, name: str) -> None:
        """See `Source.release`."""
        self._stored.release(name)
        if name in self._quantised:
            self._stored.release(name + SCALE_SUFFIX)

    def _info(self, info: TensorInfo) -> TensorInfo:
        if info.name not in self._quantised:
            return info
        return replace(info, dtype="F32", row_multiple=self._block[0])

    def _check_scale(self, weight: TensorInfo) -> None:
        where = f"{weight.file}: tensor '{weight.name}'"
        if len(weight.shape) != 2:
            raise CheckFailedError(f"{where}: FP8, but of shape {list(weight.shape)}, not 2-d")
        scale = self._stored.tensors.get(weight.name + SCALE_SUFFIX)
        if scale is None:
            raise CheckFailedError(
                f"{where}: FP8, but its scale '{weight.name}{SCALE_SUFFIX}' is missing"
            )
        blocks = tuple(-(-n // b) for n, b in zip(weight.shape, self._block, strict=True))
        if scale.shape != blocks or scale.dtype not in SCALE_DTYPES:
            raise CheckFailedError(
                f"{scale.file}: tensor '{scale.name}': {scale.dtype} {list(scale.shape)}, but "
                f"'{weight.name}' {list(weight.shape)} in blocks of {list(self._block)} "
                f"needs F32 {list(blocks)}"
            )


def scale_blocks(
    weight: torch.Tensor, scale: torch.Tensor, height: int, width: int
) -> torch.Tensor:
    """Multiplies float32 [R, C] in place, block by block.

    `scale` is float32 [ceil(R / height), ceil(C / width)].
    """
    rows, columns = weight.shape
    for index in range(scale.shape[0]):
        band = weight[index * height : min((index + 1) * height, rows)]
        band.mul_(scale[index].repeat_interleave(width)[:columns])
    return weight


def _refuse_unexplained_fp8(source: Source) -> None:
    for info in source.tensors.values():
        if info.dtype.startswith("F8_"):
            raise CheckFailedError(
                f"{info.file}: tensor '{info.name}' is {info.dtype}, "
                "but config.json has no quantization_config to say how it is scaled"
            )


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0
