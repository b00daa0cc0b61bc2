"""Load format `tunan`: a converted checkpoint, block by block, only what this process needs."""

import ctypes
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from tunan.checkpoint.architectures import layer_of
from tunan.checkpoint.companions import read_config
from tunan.checkpoint.manifest import Manifest
from tunan.checkpoint.quantize.compressed_tensors import QUANT_METHOD
from tunan.engine import compat, layout, timeline
from tunan.engine.adopt import adopt
from tunan.engine.layout import PlannedBlock
from tunan.engine.mapping import map_tensor
from tunan.engine.needs import Needs, needs_of
from tunan.engine.options import LoadOptions
from tunan.engine.progress import Progress
from tunan.engine.ranges import Rows, ranges_of, rank_rows
from tunan.engine.read_ahead import read_ahead
from tunan.engine.repack import LayerCount, LayerRepacker
from tunan.engine.staging import copy_to_device
from tunan.engine.verified import VerifiedBlocks
from tunan.errors import CheckFailedError, UsageError

logger = init_logger(__name__)


class LazyWeightLoader(BaseModelLoader):  # type: ignore[misc]
    """Loads what `tunan convert` wrote; vLLM makes one for `--load-format tunan`.

    Where the checkpoint has blocks for this tensor-parallel rank and they fit the model's
    parameters, each parameter becomes its mapped tensor. Otherwise the plain blocks go
    through the model's own `load_weights`, mapped, so that only the rows this rank keeps
    are ever read. On a CPU each layer is repacked as soon as it is complete.

    Options: `LoadOptions`, from `--model-loader-extra-config`. Raises UsageError for a
    model that is not a converted directory, CheckFailedError for a block that is missing
    or corrupt; both name the file in one line.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self.options = LoadOptions.parse(load_config.model_loader_extra_config or {})
        self._vllm_config: Any = None
        self._repacker: LayerRepacker | None = None
        self._repack_early = False

    def download_model(self, model_config: Any) -> None:
        """Nothing is fetched: the directory must be there. Raises UsageError if it is not."""
        Manifest.read(_directory(model_config))

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
        """Builds the model and loads it, as `BaseModelLoader.load_model` does."""
        self._vllm_config = vllm_config
        # Only a model that is being built has parameters still in the stored layout.
        self._repack_early = compat.is_cpu()
        try:
            model: nn.Module = super().load_model(vllm_config, model_config, prefix)
        finally:
            self._repack_early = False
            if self._repacker is not None:
                self._repacker.restore()
                self._repacker = None
        _return_freed_memory()
        timeline.mark("model")
        return model

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Loads every parameter of `model` in place."""
        directory = _directory(model_config)
        manifest = Manifest.read(directory)
        experts = compat.local_experts(self._vllm_config) if self._vllm_config else None
        needed = needs_of(model, compat.missing_layer_types(), experts)
        degree, rank = compat.tensor_parallel()
        progress = Progress.from_environment(rank)
        verified = VerifiedBlocks.of(directory, degree, rank)
        if self._repack_early:
            self._repacker = LayerRepacker(model)
        blocks = _fitting_rank_blocks(model, model_config, directory, manifest, needed)
        if blocks:
            _assign(model, self._stream(blocks, {}, verified, progress))
        else:
            blocks = layout.plain_blocks(directory, manifest, needed)
            config = read_config(directory / layout.CONFIG_FILE)
            rows = rank_rows(config, degree, rank) if degree > 1 else {}
            stream = self._stream(blocks, rows, verified, progress)
            loaded = model.load_weights(_adopted(model, stream, rows))
            _check_complete(model, model_config, loaded, directory)
        if self._repacker and not compat.unties_embedding(model_config):
            self._repacker.leave_embedding_as_it_is()

    def _stream(
        self,
        blocks: list[PlannedBlock],
        rows: Mapping[str, Rows],
        verified: VerifiedBlocks,
        progress: Progress,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Every needed tensor, mapped, in the order of use; repacks the layers behind it."""

        def hashed(block: PlannedBlock) -> bool:
            known = verified.holds(block)
            if self.options.verify == "auto":
                return block.whole and not rows and not known
            return self.options.verify == "full"

        layers = Counter(layer_of(tensor.name) for block in blocks for tensor in block.tensors)
        count = LayerCount({layer: n for layer, n in layers.items() if layer is not None})
        progress.report(0, len(blocks))
        reader = read_ahead(blocks, hashed, verified.add, ranges_of(rows))
        for done, block in enumerate(reader, start=1):
            with block.path.open("rb") as file:
                for stored in block.tensors:
                    yield stored.name, map_tensor(file.fileno(), stored)
                    for layer in count.consumed(layer_of(stored.name)):
                        if self._repacker:
                            self._repacker.layer_complete(layer)
            progress.report(done, len(blocks))
        verified.save()


def _directory(model_config: Any) -> Path:
    path = Path(model_config.model)
    if not path.is_dir():
        raise UsageError(
            f"--load-format {compat.LOAD_FORMAT}: {path} is not a directory; "
            "give one written by 'tunan convert'"
        )
    return path


def _fitting_rank_blocks(
    model: nn.Module, model_config: Any, directory: Path, manifest: Manifest, needed: Needs
) -> list[PlannedBlock]:
    """This rank's own blocks, or none if there are none or they do not fit the model."""
    degree, rank = compat.tensor_parallel()
    if model_config.quantization != (QUANT_METHOD if manifest.quantization else None):
        return []
    blocks = layout.rank_blocks(directory, manifest, degree, rank, needed)
    if not blocks:
        return []
    parameters = compat.parameters_as_stored(model)
    wanted = {n: tuple(p.shape) for n, p in parameters.items() if not compat.left_as_made(n)}
    integers = {n for n, p in parameters.items() if not p.dtype.is_floating_point}
    reason = layout.mismatch(blocks, wanted, integers)
    if reason is None:
        return blocks
    logger.warning(
        "tunan: blocks of rank %d of %d are left aside, %s; loading the plain blocks",
        rank,
        degree,
        reason,
    )
    return []


def _assign(model: nn.Module, stream: Iterator[tuple[str, torch.Tensor]]) -> None:
    parameters = compat.parameters_as_stored(model)
    on_host = all(parameter.device.type == "cpu" for parameter in parameters.values())
    with torch.no_grad():
        if not on_host:
            copy_to_device((parameters[name], tensor) for name, tensor in stream)
            return
        for name, tensor in stream:
            parameter = parameters.pop(name)
            if not adopt(parameter, tensor):
                parameter.copy_(tensor)


def _adopted(
    model: nn.Module, stream: Iterator[tuple[str, torch.Tensor]], rows: Mapping[str, Rows]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The stream, each tensor, or this rank's rows of it, already in its parameter's place
    where that is all of the parameter."""
    parameters = dict(model.named_parameters())
    for name, tensor in stream:
        parameter = parameters.pop(name, None)
        if parameter is not None:
            adopt(parameter, tensor[slice(*rows[name])] if name in rows else tensor)
        yield name, tensor


def _check_complete(
    model: nn.Module, model_config: Any, loaded: set[str] | None, directory: Path
) -> None:
    """Raises CheckFailedError if the checkpoint left a parameter of a plain model unset."""
    if loaded is None or model_config.quantization is not None:
        return
    if getattr(model_config, "runner_type", None) == "draft":
        return  # it takes its embedding and head from the main model
    unset = [name for name, _ in model.named_parameters() if name not in loaded]
    if unset:
        more = f" and {len(unset) - 1} more" if len(unset) > 1 else ""
        raise CheckFailedError(f"{directory}: no block holds the weights of {unset[0]}{more}")


def _return_freed_memory() -> None:
    """Has the C library give back what the consumed layers held in its heap."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
