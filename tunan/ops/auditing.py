"""The operator audit: what becomes of every operator of a model on a target."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunan.ops.device_facts import devices, target_name
from tunan.ops.placement import Placement, Row, place
from tunan.ops.registrations import DEFAULT_VERSION, Registrations, registrations
from tunan.ops.verdict import Fate, judge

if TYPE_CHECKING:
    import torch

    from tunan.ops.replacement import Replacements
    from tunan.ops.trace import Call, Trace

# Which layer kind a module path belongs to, and how many of it the real model has.
LayerOf = Callable[[str], tuple[str, int]]


@dataclass(frozen=True)
class AuditOptions:
    """What to audit for. `link_gbps` overrides the target's own link to the host (GB/s one way)."""

    target: str = "ascend910b"
    dtype: str = "bfloat16"
    batch: int = 1
    prompt_tokens: int = 128
    torch_npu: str = DEFAULT_VERSION
    link_gbps: float | None = None
    replace: bool = False


@dataclass(frozen=True)
class Audit:
    """The result. `steps` are the names of what was traced, in order; `replaced` is None unless
    replacements were asked for."""

    model: str
    options: AuditOptions
    target: str
    derived_from: str
    steps: tuple[str, ...]
    rows: tuple[Row, ...]
    placement: Placement
    link_gbps: float
    replaced: "Replacements | None"

    @property
    def blocking(self) -> tuple[Row, ...]:
        """The rows that would raise an error on the device and that nothing replaces."""
        return tuple(r for r in self.rows if r.fate is Fate.UNSUPPORTED and not r.replacement)


def audit(
    model: "torch.nn.Module",
    example_inputs: Sequence[Any] | Mapping[str, Any],
    target: str = "ascend910b",
    *,
    torch_npu: str = DEFAULT_VERSION,
    link_gbps: float | None = None,
) -> Audit:
    """Audits a torch module by running it once on `example_inputs`.

    `example_inputs` are positional arguments, or keywords if it is a mapping; they and the
    model may be on the meta device (nothing is computed) or on the CPU. Raises UsageError for
    an unknown target or torch_npu version.
    """
    from tunan.ops.trace import trace

    options = AuditOptions(
        target=target, dtype=_dtype(model), torch_npu=torch_npu, link_gbps=link_gbps
    )
    keywords = dict(example_inputs) if isinstance(example_inputs, Mapping) else {}
    arguments = () if keywords else tuple(example_inputs)
    traced, _ = trace(model, arguments, keywords, registrations(torch_npu))
    return _judge_all(
        type(model).__name__, options, {"forward": traced}, _by_module_list(model), {}, None
    )


def audit_config(config: Mapping[str, Any], options: AuditOptions) -> Audit:
    """Audits a known architecture from its configuration: one prefill and one decode step.

    Raises UsageError for an unknown architecture, target or torch_npu version.
    """
    import torch

    from tunan.ops.meta_model import meta_model
    from tunan.ops.npu_operators import declared
    from tunan.ops.replacement import replace
    from tunan.ops.trace import trace

    target_name(options.target)
    known = registrations(options.torch_npu)
    made = meta_model(config, options.dtype)
    with declared(known):
        replaced = replace(made.model, backend="npu") if options.replace else None
        prompt = torch.zeros(options.batch, options.prompt_tokens, dtype=torch.int64, device="meta")
        prefill, result = trace(made.model, (), {"input_ids": prompt, "use_cache": True}, known)
        following = {"input_ids": prompt[:, :1], "past_key_values": result.past_key_values}
        decode, _ = trace(made.model, (), following | {"use_cache": True}, known)
    tokens = {
        "prefill": (options.batch * options.prompt_tokens, options.batch),
        "decode": (options.batch, options.batch),
    }
    layer_of = _by_kind(made.layers)
    steps = {"prefill": prefill, "decode": decode}
    return _judge_all(made.architecture, options, steps, layer_of, tokens, replaced)


def _judge_all(
    model: str,
    options: AuditOptions,
    steps: "Mapping[str, Trace]",
    layer_of: LayerOf,
    tokens: dict[str, tuple[int, int]],
    replaced: "Replacements | None",
) -> Audit:
    target = target_name(options.target)
    known = registrations(options.torch_npu)
    rows = tuple(
        row
        for step, traced in steps.items()
        for row in _rows(step, traced, layer_of, known, target, engine=bool(tokens))
    )
    link_gbps = options.link_gbps or devices().targets[target].link.gbps
    return Audit(
        model=model,
        options=options,
        target=target,
        derived_from=known.derived_from,
        steps=tuple(steps),
        rows=rows,
        placement=place(rows, tokens, devices(), link_gbps),
        link_gbps=link_gbps,
        replaced=replaced,
    )


def _rows(
    step: str,
    traced: "Trace",
    layer_of: LayerOf,
    known: Registrations,
    target: str,
    *,
    engine: bool,
) -> Iterator[Row]:
    """Equal calls together, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[Call]] = {}
    for call in traced.calls:
        if not call.view and not call.by_parts and not _only_allocates(call):
            verdict = judge(call, known, target, engine=engine)
            key = (layer_of(call.module), call.operator, call.inputs, verdict)
            groups.setdefault(key, []).append(call)
    for ((layer, repeats), operator, inputs, verdict), calls in groups.items():
        yield Row(
            step=step,
            layer=layer,
            unit=verdict.unit,
            operator=operator,
            dtypes=tuple(operand.dtype for operand in inputs),
            shapes=tuple(operand.shape for operand in inputs),
            output_dtypes=tuple(operand.dtype for operand in calls[0].outputs),
            count=len(calls) * repeats,
            fate=verdict.fate,
            as_written=verdict.as_written,
            reason=verdict.reason,
            replacement=verdict.replacement,
            input_bytes=tuple(operand.bytes for operand in inputs),
            output_bytes=tuple(operand.bytes for operand in calls[0].outputs),
            modules=tuple(dict.fromkeys(call.module for call in calls)),
        )


def _only_allocates(call: "Call") -> bool:
    return call.operator.removeprefix("aten::").startswith(("empty", "new_empty"))


def _dtype(model: "torch.nn.Module") -> str:
    """The dtype of a model's parameters, all of them where they differ."""
    found = dict.fromkeys(str(p.dtype).removeprefix("torch.") for p in model.parameters())
    return "/".join(found) or "no parameters"


def _by_kind(layers: tuple[tuple[str, int], ...]) -> LayerOf:
    from tunan.checkpoint.architectures import layer_of

    def kind(path: str) -> tuple[str, int]:
        index = layer_of(path + ".")
        return layers[index] if index is not None else ("outside the layers", 1)

    return kind


def _by_module_list(model: "torch.nn.Module") -> LayerOf:
    """Layers of a model nobody knows: members of a list of modules, by their class."""

    def kind(path: str) -> tuple[str, int]:
        parts = path.split(".")
        for end, part in enumerate(parts, 1):
            if part.isdigit():
                return type(model.get_submodule(".".join(parts[:end]))).__name__, 1
        return "outside the layers", 1

    return kind
