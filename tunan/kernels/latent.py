"""A decoder layer of DeepSeek-V2 and V3 in one call (native/layer/latent.h)."""

import ctypes
import enum
import functools
from dataclasses import dataclass
from typing import Any

import torch

from tunan.errors import UsageError
from tunan.kernels import library
from tunan.kernels.kv_cache import CacheArgument
from tunan.kernels.layer import FLOAT_TYPES
from tunan.kernels.linear import PackedLinear
from tunan.kernels.moe import PackedExperts
from tunan.kernels.router import Routing


class Stage(enum.IntEnum):
    """The parts of a layer in their order; after OUTPUT and MLP `hidden` is a rank's share."""

    PROJECT = 0
    WRITE = 1
    ATTEND = 2
    OUTPUT = 3
    MLP = 4


_POINTERS = (
    "input_norm",
    "post_norm",
    "query_norm",
    "latent_norm",
    "down_packed",
    "down_plain",
    "query",
    "to_latent",
    "to_value",
    "output",
    "cos_sin",
    "gate_up",
    "down",
    "router",
    "router_bias",
    "placed",
    "experts_up",
    "experts_down",
)
_LONGS = (
    "experts_up_bytes",
    "experts_down_bytes",
    "max_position",
    "to_latent_stride",
    "to_latent_head_stride",
    "to_value_stride",
    "to_value_head_stride",
)
_INTS = (
    "hidden",
    "intermediate",
    "heads",
    "nope",
    "rope",
    "value",
    "latent",
    "query_rank",
    "neox",
    "in_steps",
    "experts",
    "groups",
    "kept_groups",
    "top_k",
    "sigmoid",
    "renormalise",
    "experts_here",
    "experts_intermediate",
    "type",
)
_FLOATS = ("epsilon", "latent_epsilon", "scale", "router_scale", "routed_scale")


class WeightsArgument(ctypes.Structure):
    """native/layer/latent.h: LatentWeights."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _LONGS),
        *((name, ctypes.c_int32) for name in _INTS),
        *((name, ctypes.c_float) for name in _FLOATS),
    ]


class StepArgument(ctypes.Structure):
    """native/layer/latent.h: LatentStep."""

    _fields_ = [
        ("hidden", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_table", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("query", ctypes.c_void_p),
        ("attended", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("table_width", ctypes.c_int32),
        ("sequences", ctypes.c_int32),
        ("tokens", ctypes.c_int32),
        ("decoded", ctypes.c_int32),
        ("first_layer", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class Mixture:
    """Routed experts. router [experts, hidden] has the activations' type; gate_up and down are the
    packed weights of those that are here; scale: of what they add up to."""

    router: torch.Tensor
    routing: Routing
    gate_up: PackedExperts
    down: PackedExperts
    scale: float = 1.0


@dataclass(frozen=True)
class LatentLayer:
    """One layer of DeepSeek-V2 or V3.

    Norms, down if it is a tensor, to_latent [heads, nope, latent], to_value [heads, value, latent]
    and cos_sin [max_position, rope] have the activations' type, float32 or bfloat16. down
    [query latent + latent + rope, hidden], query [heads (nope + rope), query latent or hidden],
    output [hidden, heads value]. gate_up and down_mlp: the MLP's, or the shared experts', or None.
    query_norm is None without a query latent. in_steps: as in `rotate`.
    """

    input_norm: torch.Tensor
    post_norm: torch.Tensor
    latent_norm: torch.Tensor
    down: PackedLinear | torch.Tensor
    query: PackedLinear
    to_latent: torch.Tensor
    to_value: torch.Tensor
    output: PackedLinear
    cos_sin: torch.Tensor
    epsilon: float
    latent_epsilon: float
    scale: float
    query_norm: torch.Tensor | None = None
    gate_up: PackedLinear | None = None
    down_mlp: PackedLinear | None = None
    mixture: Mixture | None = None
    neox: bool = False
    in_steps: bool = False

    def __post_init__(self) -> None:
        dtype, (hidden,) = self.input_norm.dtype, self.input_norm.shape
        heads, _, latent = self.to_latent.shape
        rows = self.query_rank + latent + self.cos_sin.shape[1]
        value = self.to_value.shape[1]
        needed: dict[str, tuple[Any, tuple[int, ...]]] = {
            "input_norm": (self.input_norm, (hidden,)),
            "post_norm": (self.post_norm, (hidden,)),
            "latent_norm": (self.latent_norm, (latent,)),
            "query_norm": (self.query_norm, (self.query_rank,)),
            "to_value": (self.to_value, (heads, value, latent)),
            "to_latent": (self.to_latent, tuple(self.to_latent.shape)),
            "cos_sin": (self.cos_sin, tuple(self.cos_sin.shape)),
        }
        if isinstance(self.down, torch.Tensor):
            needed["down"] = (self.down, (rows, hidden))
        if self.mixture is not None:
            experts = len(self.mixture.router)
            needed["router"] = (self.mixture.router, (experts, hidden))
            self.mixture.routing.check(experts)
        if dtype not in FLOAT_TYPES:
            raise UsageError(f"norms of {dtype}; float32 or bfloat16")
        if self.mixture is None and (self.gate_up is None or self.down_mlp is None):
            raise UsageError("a layer has an MLP, or routed experts, or both")
        for name, (tensor, shape) in needed.items():
            if tensor is not None:
                _check(name, tensor, dtype, shape)

    @property
    def query_rank(self) -> int:
        """Size of a query's latent, 0 without one."""
        return 0 if self.query_norm is None else self.query_norm.numel()

    @functools.cached_property
    def argument(self) -> WeightsArgument:
        """What the kernels take; valid as long as this object is."""
        heads, nope, latent = self.to_latent.shape
        plain = self.down if isinstance(self.down, torch.Tensor) else None
        packed = None if isinstance(self.down, torch.Tensor) else self.down.data
        made = WeightsArgument(
            max_position=self.cos_sin.shape[0],
            to_latent_head_stride=self.to_latent.stride(0),
            to_latent_stride=self.to_latent.stride(1),
            to_value_head_stride=self.to_value.stride(0),
            to_value_stride=self.to_value.stride(1),
            hidden=self.input_norm.numel(),
            intermediate=0 if self.down_mlp is None else self.down_mlp.inputs,
            heads=heads,
            nope=nope,
            rope=self.cos_sin.shape[1],
            value=self.to_value.shape[1],
            latent=latent,
            query_rank=self.query_rank,
            neox=self.neox,
            in_steps=self.in_steps,
            type=FLOAT_TYPES[self.input_norm.dtype],
            epsilon=self.epsilon,
            latent_epsilon=self.latent_epsilon,
            scale=self.scale,
        )
        pointers = {
            "input_norm": self.input_norm,
            "post_norm": self.post_norm,
            "query_norm": self.query_norm,
            "latent_norm": self.latent_norm,
            "down_packed": packed,
            "down_plain": plain,
            "query": self.query.data,
            "to_latent": self.to_latent,
            "to_value": self.to_value,
            "output": self.output.data,
            "cos_sin": self.cos_sin,
            "gate_up": None if self.gate_up is None else self.gate_up.data,
            "down": None if self.down_mlp is None else self.down_mlp.data,
        }
        for name, tensor in pointers.items():
            setattr(made, name, None if tensor is None else tensor.data_ptr())
        if self.mixture is not None:
            _add_mixture(made, self.mixture)
        return made


def _add_mixture(made: WeightsArgument, mixture: Mixture) -> None:
    routing = mixture.routing
    made.router = mixture.router.data_ptr()
    made.router_bias = None if routing.bias is None else routing.bias.data_ptr()
    made.placed = None if routing.placed is None else routing.placed.data_ptr()
    made.experts_up = mixture.gate_up.data.data_ptr()
    made.experts_down = mixture.down.data.data_ptr()
    made.experts_up_bytes = mixture.gate_up.bytes_each
    made.experts_down_bytes = mixture.down.bytes_each
    made.experts = len(mixture.router)
    made.groups, made.kept_groups = routing.groups, routing.kept_groups
    made.top_k, made.sigmoid, made.renormalise = (
        routing.top_k,
        routing.sigmoid,
        routing.renormalise,
    )
    made.experts_here = mixture.gate_up.count
    made.experts_intermediate = mixture.down.inputs
    made.router_scale, made.routed_scale = routing.scale, mixture.scale


def latent_layer(
    layer: LatentLayer,
    cache: CacheArgument | None,
    step: StepArgument,
    first: Stage = Stage.PROJECT,
    last: Stage = Stage.MLP,
) -> None:
    """Replaces what `step.hidden` and `step.residual` [tokens, hidden] point to by the layer's.

    The step is not checked here beyond its numbers; the tensors that it points to have to be there.
    `first` and `last`: only these stages, where `step` has memory of its own for what lies between
    them. cache: None where nothing is written or attended to. Raises UsageError, CheckFailedError
    (weights packed for another instruction set).
    """
    at = None if cache is None else ctypes.byref(cache)
    library.check(_function()(ctypes.byref(layer.argument), at, ctypes.byref(step), first, last))


@functools.cache
def _function() -> Any:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    return library.function("tunan_latent_layer", number, pointer, pointer, pointer, number, number)


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    # Heads of these two may be apart, as vLLM leaves them: a row is in one piece all the same.
    whole = tensor.stride(-1) == 1 if name.startswith("to_") else tensor.is_contiguous()
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not whole:
        raise UsageError(
            f"{name} is {tuple(tensor.shape)} {tensor.dtype}; {shape} {dtype}, in one piece, is"
            " needed"
        )
