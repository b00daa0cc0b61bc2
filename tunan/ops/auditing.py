"""The operator audit: what becomes of every operator of a model on a target."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tunan.errors import CheckFailedError, UsageError
from tunan.ops.device_facts import devices, target_name
from tunan.ops.placement import Placement, Row, place
from tunan.ops.quantised import TO_CONVERT, Quantised, quantised
from tunan.ops.registrations import DEFAULT_VERSION, Registrations, registrations
from tunan.ops.units import unit_of
from tunan.ops.verdict import QUANTISED, Fate, Scheme, Verdict, judge

if TYPE_CHECKING:
    import torch

    from tunan.ops.replacement import Replacements
    from tunan.ops.trace import Call, Trace

# Which layer kind a module path belongs to, and how many of it the real model has.
LayerOf = Callable[[str], tuple[str, int]]

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class AuditOptions:
    """What to audit for. `dtype` "auto" is bfloat16, or float16 on a chip that has none of it;
    `link_gbps` overrides the target's own link to the host (GB/s one way)."""

    target: str = "ascend910b"
    dtype: str = "auto"
    batch: int = 1
    prompt_tokens: int = 128
    torch_npu: str = DEFAULT_VERSION
    link_gbps: float | None = None
    replace: bool = False


@dataclass(frozen=True)
class Audit:
    """The result. `options` has the dtype that was taken. `steps` are the names of what was traced,
    in order; `replaced` is None unless replacements were asked for; `quantised` is None for a
    model that is not."""

    model: str
    options: AuditOptions
    target: str
    derived_from: str
    steps: tuple[str, ...]
    rows: tuple[Row, ...]
    placement: Placement
    link_gbps: float
    replaced: "Replacements | None"
    quantised: Quantised | None

    @property
    def blocking(self) -> tuple[Row, ...]:
        """The rows that would raise an error on the device and that nothing replaces there:
        another checkpoint is no replacement."""
        return tuple(
            row
            for row in self.rows
            if row.fate is Fate.UNSUPPORTED and row.replacement in ("", TO_CONVERT)
        )


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
    an unknown target or torch_npu version, and for what is no module or no sequence of inputs.
    """
    import torch

    from tunan.ops.trace import trace

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"audit() takes a torch module, not {type(model).__name__}")
    if not isinstance(example_inputs, (Sequence, Mapping)) or isinstance(example_inputs, str):
        raise UsageError(
            f"example_inputs is a {type(example_inputs).__name__}; it must be a list of the "
            "arguments or a dict of them by name"
        )
    target_name(target)
    options = AuditOptions(
        target=target, dtype=_dtype(model), torch_npu=torch_npu, link_gbps=link_gbps
    )
    keywords = dict(example_inputs) if isinstance(example_inputs, Mapping) else {}
    arguments = () if keywords else tuple(example_inputs)
    traced, _ = trace(model, arguments, keywords, registrations(torch_npu))
    return _judge_all(
        type(model).__name__, options, {"forward": traced}, _by_module_list(model), {}
    )


def audit_config(
    config: Mapping[str, Any],
    options: AuditOptions,
    description: Mapping[str, str] | None = None,
) -> Audit:
    """Audits a known architecture from its configuration: one prefill and one decode step.

    `description` is ModelSlim's of a quantised checkpoint. Raises UsageError for what is not
    audited (architecture, target, torch_npu version, way of quantising) or does not go together,
    and CheckFailedError for a configuration that fits no model; what can be found without torch
    is found before it is imported.
    """
    options, weights = _checked(config, options, description)
    known = registrations(options.torch_npu)

    from tunan.ops.meta_model import meta_model, one_line

    made = meta_model(config, options.dtype)
    try:
        steps, replaced = _traced(made.model, options, known)
    except RuntimeError as error:
        raise CheckFailedError(
            f"config.json: transformers' {made.architecture} does not run with it "
            f"({one_line(error)})"
        ) from error
    tokens = {
        "prefill": (options.batch * options.prompt_tokens, options.batch),
        "decode": (options.batch, options.batch),
    }
    layer_of = _by_kind(made.layers)
    return _judge_all(made.architecture, options, steps, layer_of, tokens, replaced, weights)


def _checked(
    config: Mapping[str, Any], options: AuditOptions, description: Mapping[str, str] | None
) -> tuple[AuditOptions, Quantised | None]:
    """The options with their dtype, and what is quantised."""
    from tunan.ops.config_checks import check_architecture, check_prompt, check_sizes

    target = target_name(options.target)
    dtype = devices().targets[target].runs[0] if options.dtype == "auto" else options.dtype
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype '{dtype}'; known are auto, {', '.join(DTYPES)}")
    check_architecture(config)
    check_sizes(config)
    check_prompt(config, options.prompt_tokens)
    weights = quantised(config, description)
    if weights is not None and options.replace:
        raise UsageError("--replace is for models that are not quantised: leave it out")
    return replace(options, dtype=dtype), weights


def _traced(
    model: "torch.nn.Module", options: AuditOptions, known: Registrations
) -> "tuple[dict[str, Trace], Replacements | None]":
    import torch

    from tunan.ops.npu_operators import declared
    from tunan.ops.replacement import replace as exchange
    from tunan.ops.trace import trace

    with declared(known):
        replaced = exchange(model, backend="npu") if options.replace else None
        prompt = torch.zeros(options.batch, options.prompt_tokens, dtype=torch.int64, device="meta")
        prefill, result = trace(model, (), {"input_ids": prompt, "use_cache": True}, known)
        following = {"input_ids": prompt[:, :1], "past_key_values": result.past_key_values}
        decode, _ = trace(model, (), following | {"use_cache": True}, known)
    return {"prefill": prefill, "decode": decode}, replaced


def _judge_all(
    model: str,
    options: AuditOptions,
    steps: "Mapping[str, Trace]",
    layer_of: LayerOf,
    tokens: dict[str, tuple[int, int]],
    replaced: "Replacements | None" = None,
    weights: Quantised | None = None,
) -> Audit:
    target = target_name(options.target)
    known = registrations(options.torch_npu)

    def judged(call: "Call", scheme: Scheme) -> Verdict:
        engine = bool(tokens)
        return judge(call, known, target, engine=engine, dtype=options.dtype, weights=scheme)

    rows = tuple(
        row
        for step, traced in steps.items()
        for row in _rows(step, traced, layer_of, judged, weights)
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
        quantised=weights,
    )


def _rows(
    step: str,
    traced: "Trace",
    layer_of: LayerOf,
    judged: "Callable[[Call, Scheme], Verdict]",
    weights: Quantised | None,
) -> Iterator[Row]:
    """Equal calls together, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[Call]] = {}
    for call in traced.calls:
        if not call.view and not call.by_parts and not _only_allocates(call):
            layer, repeats = layer_of(call.module)
            for scheme, count in _schemes(call, repeats, weights):
                key = ((layer, count), call.operator, call.inputs, judged(call, scheme))
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


def _schemes(call: "Call", repeats: int, weights: Quantised | None) -> Iterator[tuple[Scheme, int]]:
    """How the layers that a call stands for are quantised, and how many of them."""
    if weights is None or unit_of(call) not in QUANTISED:
        yield "", repeats
        return
    quantised_layers, plain = weights.layers(call.module, repeats)
    if quantised_layers:
        yield weights.scheme, quantised_layers
    if plain:
        yield "", plain


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
