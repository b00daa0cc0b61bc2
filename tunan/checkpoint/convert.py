"""Converts a checkpoint: decides the blocks, has them written, publishes the result."""

import errno
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tunan import __version__
from tunan.checkpoint.architectures import architecture_of, layer_of
from tunan.checkpoint.block_pool import write_blocks
from tunan.checkpoint.blocks import METADATA_KEY, Written, header_of
from tunan.checkpoint.chunks import ChunkReader
from tunan.checkpoint.destination import Destination
from tunan.checkpoint.inventory import Inventory, take_stock
from tunan.checkpoint.journal import JOURNAL_FILE, Journal, finished_blocks, plan_digest
from tunan.checkpoint.manifest import (
    CacheQuantization,
    KeptPrecision,
    Manifest,
    Origin,
    Quality,
    utf8,
)
from tunan.checkpoint.metadata import write_metadata
from tunan.checkpoint.plan import MIB, Layout, PlannedBlock, plan_plain, plan_rank
from tunan.checkpoint.precision import FLOATS, ITEM_BYTES, KEPT_SUFFIXES, PRECISIONS, Precision
from tunan.checkpoint.quantize.kv_cache import Calibration, is_cache_tensor
from tunan.checkpoint.quantize.quality import quantization_of
from tunan.checkpoint.quantize.report import MOST_TOKENS, compare, is_worth_it
from tunan.checkpoint.quantize.scheme import Quantisation, Rounded
from tunan.checkpoint.quantize.which_layers import check_groups
from tunan.checkpoint.source import Source, TensorInfo
from tunan.errors import CheckFailedError, OutsideError, TunanError
from tunan.ops.cpu_plugin import cpu_map
from tunan.ops.map import MappedModule, operator_map

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


def _default_workers() -> int:
    """Two a core, as each waits for the disk half of its time; eight keep within 500 MB."""
    return min(8, 2 * len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class ConvertOptions:
    """What is asked of a conversion, with every default.

    `tensor_parallel` None writes the plain layout only; a number, 1 included, adds blocks that
    are fused and cut for each rank. `block_bytes` bounds a block, header included.
    `quantisation` None leaves every weight in `precision`; `integers` are of weights that `fit`
    rounded, the source then being the one that it made. With `calibration` the cache is int8,
    and the source is one that `with_cache_scales` made. `report` runs the model before and after,
    None only if that takes neither long nor too much memory; `report_tokens` bounds its text.
    """

    precision: Precision = PRECISIONS["bfloat16"]
    quantisation: Quantisation | None = None
    integers: Mapping[str, Rounded] | None = None
    calibration: Calibration | None = None
    report: bool | None = False
    report_tokens: int = MOST_TOKENS
    target: str = "cpu"
    tensor_parallel: int | None = None
    max_batch_size: int = 32
    name: str | None = None
    block_bytes: int = 256 * MIB
    workers: int = field(default_factory=_default_workers)
    overwrite: bool = False

    @property
    def layout(self) -> Layout:
        """What of these options decides the blocks."""
        chosen, int8_cache = self.quantisation, self.calibration is not None
        if chosen is None:
            return Layout(self.precision, self.block_bytes, None, int8_cache)
        return Layout(self.precision, self.block_bytes, chosen.weights, int8_cache, chosen.finer)


@dataclass(frozen=True)
class ConversionPlan:
    """Everything decided before the first byte is written."""

    inventory: Inventory
    blocks: tuple[PlannedBlock, ...]
    operators: tuple[MappedModule, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all blocks, headers included."""
        return space_for(self.blocks)


@dataclass(frozen=True)
class Outcome:
    """What a conversion did.

    `reused` blocks were finished by an earlier run that was cut short; `restarted` says that
    such a run was found but was of another source or other options, and was thrown away.
    """

    manifest: Manifest
    written_bytes: int
    reused: int
    restarted: bool


class Progress(Protocol):
    """Is told how a conversion goes; from several threads, never two at once."""

    def begin(self, total_bytes: int, blocks: int, reused: int, restarted: bool) -> None: ...

    def advance(self, count: int) -> None: ...


def plan_conversion(source: Source, options: ConvertOptions) -> ConversionPlan:
    """Decides which blocks to write. Reads no tensor data and writes nothing.

    Raises UsageError for an unknown architecture or target or a tensor-parallel degree that
    does not fit, CheckFailedError for missing, misshapen or unreadable tensors.
    """
    architecture_of(source.config)
    shapes = {n: info.shape for n, info in source.tensors.items() if not is_cache_tensor(n)}
    inventory = take_stock(source.config, shapes)
    operators = _operators(source.config, options)
    unexpected = set(inventory.unexpected)
    for name in inventory.names:
        _refuse_unwritable(source.tensors[name], expected=name not in unexpected)
    layout, degree = options.layout, options.tensor_parallel
    if layout.weights:
        check_groups(source.config, shapes, layout.weights, degree or 1)
    blocks = plan_plain(source.config, inventory, source.tensors, layout)
    for rank in range(degree or 0):
        parallel, mtp = (degree or 1, rank), not inventory.mtp_absent
        blocks += plan_rank(source.config, source.tensors, layout, parallel, mtp=mtp)
    return ConversionPlan(inventory, tuple(blocks), operators)


def _operators(config: Mapping[str, Any], options: ConvertOptions) -> tuple[MappedModule, ...]:
    bits = options.quantisation and options.quantisation.weights.bits
    if bits and options.target == "cpu":
        return cpu_map(config, bits, options.precision.torch_name)
    return operator_map(config, options.target, eight_bits=bits == 8)


def _refuse_unwritable(info: TensorInfo, *, expected: bool) -> None:
    where = f"{info.file}: {info.name}"
    if info.dtype not in (FLOATS if expected else ITEM_BYTES):
        raise CheckFailedError(f"{where} is stored as {info.dtype}, no way to convert it")
    if info.name == METADATA_KEY:
        raise CheckFailedError(f"{where}: safetensors keeps this name for itself")


def unfinished(
    source: Source, destination: Destination, plan: ConversionPlan
) -> list[PlannedBlock]:
    """The blocks still to be written: all but those an earlier run of the same plan finished."""
    earlier = finished_blocks(destination.partial, plan_digest(source, plan.blocks)) or {}
    return [block for block in plan.blocks if block.file not in earlier]


def space_for(blocks: Iterable[PlannedBlock]) -> int:
    """Bytes these blocks take on the disk."""
    return sum(block.bytes + len(header_of(block)) for block in blocks)


def convert(
    source: Source,
    destination: Destination,
    plan: ConversionPlan,
    options: ConvertOptions,
    progress: Progress,
) -> Outcome:
    """Writes the planned blocks and publishes them as `destination.path`.

    An earlier run that was cut short is continued if source and options are the same. Raises
    UsageError if the destination is taken or being written, CheckFailedError for a damaged
    source or a full disk; what is finished then stays in `destination.partial`, which has no
    manifest, and is continued by the next run.
    """
    destination.check(source.path, overwrite=options.overwrite)
    try:
        with destination.locked():
            return _convert(source, destination, plan, options, progress)
    except OSError as error:
        raise _explained(error, destination) from error


def _convert(
    source: Source,
    destination: Destination,
    plan: ConversionPlan,
    options: ConvertOptions,
    progress: Progress,
) -> Outcome:
    partial, reader = destination.partial, ChunkReader(source, options.integers)
    digest = plan_digest(source, plan.blocks)
    earlier = finished_blocks(partial, digest)
    blocks = dict(earlier or {})
    restarted = earlier is None and (partial / JOURNAL_FILE).exists()
    destination.clear(keep={JOURNAL_FILE, *blocks})
    pending = [block for block in plan.blocks if block.file not in blocks]
    reused, needed = len(blocks), sum(block.bytes for block in pending)
    destination.check_space(space_for(pending))
    progress.begin(needed, len(plan.blocks), reused, restarted)
    journal = Journal(partial, digest, continued=earlier is not None)

    def finished(written: Written) -> None:
        journal.record(written)
        blocks[written.block.file] = written

    try:
        write_blocks(reader, pending, partial, options.workers, progress.advance, finished)
    finally:
        journal.close()
    manifest = _finish(source, destination, plan, options, blocks)
    return Outcome(manifest, needed, reused, restarted)


def _finish(
    source: Source,
    destination: Destination,
    plan: ConversionPlan,
    options: ConvertOptions,
    blocks: dict[str, Written],
) -> Manifest:
    partial, degree = destination.partial, options.tensor_parallel
    manifest = Manifest(
        model_name=utf8(options.name or destination.path.name),
        architecture=architecture_of(source.config).name,
        precision=options.precision.manifest_name,
        quantization=quantization_of(
            source.config, options.quantisation, [blocks[b.file] for b in plan.blocks]
        ),
        kv_cache=_cache(plan, options),
        quality=_quality(source, destination, plan, options),
        target=options.target,
        max_batch_size=options.max_batch_size,
        tensor_parallel_degree=degree or 1,
        pipeline_parallel_degree=1,
        operators={mapped.module: mapped.operator for mapped in plan.operators},
        blocks=tuple(blocks[block.file].block for block in plan.blocks),
        files=write_metadata(source, plan.blocks, options.layout, partial),
        kept_precision=_kept(plan, options.precision),
        unexpected_tensors=plan.inventory.unexpected,
        source=Origin(path=utf8(str(source.path)), sha256=source.fingerprint()),
        tool=f"tunan {__version__}",
    )
    manifest.write(partial)
    destination.publish(overwrite=options.overwrite)
    return manifest


def makes_report(source: Source, options: ConvertOptions) -> bool:
    """Whether the model runs before and after."""
    if options.quantisation is None and options.calibration is None:
        return False
    return is_worth_it(source) if options.report is None else options.report


def _quality(
    source: Source, destination: Destination, plan: ConversionPlan, options: ConvertOptions
) -> Quality | None:
    if not makes_report(source, options):
        return None
    return compare(source, destination.partial, plan.blocks, options.report_tokens)


def _cache(plan: ConversionPlan, options: ConvertOptions) -> CacheQuantization | None:
    if options.calibration is None:
        return None
    names = [entry.name for block in plan.blocks for entry in block.entries]
    layers = {layer_of(name) for name in names if is_cache_tensor(name)}
    return CacheQuantization(
        scheme="C8", calibrated_on=utf8(options.calibration.name), layers=len(layers)
    )


def _kept(plan: ConversionPlan, precision: Precision) -> tuple[KeptPrecision, ...]:
    kept = Counter(
        (suffix, entry.dtype)
        for block in plan.blocks
        if block.rank is None
        for entry in block.entries
        for suffix in KEPT_SUFFIXES
        if entry.name.endswith(suffix) and entry.dtype != precision.code
    )
    return tuple(KeptPrecision(suffix=s, dtype=d, tensors=n) for (s, d), n in kept.items())


def _explained(error: OSError, destination: Destination) -> TunanError:
    partial = destination.partial
    where, why = error.filename or partial, error.strerror or error
    if error.errno in _READ_ONLY:
        return OutsideError(f"{where}: {why}; make it accessible, or choose another directory")
    resume = "run the same command again"
    if (partial / JOURNAL_FILE).is_file():
        resume = f"finished blocks are kept in {partial}: {resume} to continue"
    if error.errno in _DISK_FULL:
        return CheckFailedError(f"{partial}: no space left ({why}); make room; {resume}")
    if error.errno == errno.EFBIG:
        return CheckFailedError(
            f"{partial}: a limit on the size of files is in the way ({why}); raise it "
            f"(ulimit -f) or take a file system for larger files; {resume}"
        )
    return CheckFailedError(f"{where}: {why}; {resume}")
