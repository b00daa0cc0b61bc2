"""What has to stand in for parts of the published packages that no CANN library provides.

REPLACEMENTS is the whole list, with the reason for each; everything else that runs is the published
package, byte for byte. Each is applied right after its module has been imported
(shims/sitecustomize.py), in every process.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class SlotMapping:
    """Stands in for vLLM's Triton kernel: the slot in the KV cache of each token of a step."""

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        # The grid has a program a request, and one more that pads.
        return lambda *args, **kwargs: self._run(grid[0] - 1, *args, **kwargs)

    def _run(
        self,
        requests: int,
        tokens: int,
        max_tokens: int,
        query_start: torch.Tensor,
        positions: torch.Tensor,
        block_table: torch.Tensor,
        _stride: int,
        block_size: int,
        slots: torch.Tensor,
        **settings: Any,
    ) -> None:
        import torch

        if settings["TOTAL_CP_WORLD_SIZE"] != 1:
            raise NotImplementedError("context parallelism is not emulated")
        counts = query_start[1 : requests + 1] - query_start[:requests]
        rows = torch.repeat_interleave(torch.arange(requests, device=counts.device), counts)
        at = positions[: rows.numel()]
        blocks = block_table[rows, at // block_size].to(at.dtype)
        slots[: rows.numel()] = (blocks * block_size + at % block_size).to(slots.dtype)
        slots[tokens:max_tokens] = settings["PAD_ID"]


def _patch_slot_mapping(module: ModuleType) -> None:
    module.__dict__["_compute_slot_mapping_kernel"] = SlotMapping()


def _patch_custom_operators(_module: ModuleType) -> None:
    from vllm_ascend.utils import enable_custom_op

    enable_custom_op()
    # By path, as this file itself is loaded: the package need not be importable.
    load_beside("custom_operators").register()


def load_beside(name: str) -> ModuleType:
    """Loads a module of this folder by its path."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"tunan_emulator_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is gone; install tunan-emulator again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _patch_torchvision(module: ModuleType) -> None:
    import torch

    if not module._has_ops():
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        # The registration lasts as long as the library object.
        module.__dict__["_tunan_library"] = library


@dataclass(frozen=True)
class Replacement:
    """What of `module` is replaced, why, what stands in, and the function that does it."""

    module: str
    what: str
    why: str
    instead: str
    apply: Callable[[ModuleType], None]


REPLACEMENTS = (
    Replacement(
        module="torchvision.extension",
        what="the schemas of its own operators",
        why="the package index has torchvision built for CUDA, whose library does not load beside "
        "the CPU build of torch; vllm-ascend 0.23.0 imports it for models that see",
        instead="schemas without kernels: importing works, using them fails",
        apply=_patch_torchvision,
    ),
    Replacement(
        module="vllm_ascend.worker.block_table",
        what="_compute_slot_mapping_kernel",
        why="a Triton kernel that 0.23.0 calls even where there is no Triton; no Triton compiler "
        "has the emulated device for a target",
        instead="the same arithmetic with torch operators on the device (SlotMapping)",
        apply=_patch_slot_mapping,
    ),
    Replacement(
        module="vllm_ascend.worker.block_table",
        what="enable_custom_op() is called, once and early",
        why="0.23.0 first tries its own C++ operators while a graph is traced, where a failing "
        "import stops the trace; their library is built against torch 2.10 and their kernels "
        "are Ascend C, which only the chip runs",
        instead="vllm-ascend's own torch_npu path, and custom_operators.py for what has none",
        apply=_patch_custom_operators,
    ),
)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patches = [one.apply for one in REPLACEMENTS if one.module == name]
        if not patches:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            for patch in patches:
                patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Arranges for the replacements in this process; called once, at its start."""
    sys.meta_path.insert(0, _Finder())
