"""Rotations that spread outliers over all inputs (QuaRot, Ashkboos et al. 2024, arXiv 2404.00456).

The states that layers hand on are turned by one orthogonal matrix, the values of every head by
another. What reads them is turned by the same, what writes them by the transposed: nothing changes
before rounding, no engine has to know, and no channel is much larger than the rest. Norms commute
with a rotation once their gains are in the weights behind them; so embedding and head, which
stand on the two sides of the last gain, are two tensors afterwards, also of a model that ties them.
The inputs of `down_proj` come out of a product, through which nothing can be turned.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi
from typing import TYPE_CHECKING, Any

from tunan.checkpoint.architectures import head_size, number

if TYPE_CHECKING:
    import torch

EMBEDDING, HEAD, LAST_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
# What of a decoder layer reads its states, behind which norm.
_BEHIND = {
    "self_attn.q_proj.weight": "input_layernorm.weight",
    "self_attn.k_proj.weight": "input_layernorm.weight",
    "self_attn.v_proj.weight": "input_layernorm.weight",
    "mlp.gate_proj.weight": "post_attention_layernorm.weight",
    "mlp.up_proj.weight": "post_attention_layernorm.weight",
}
_VALUES, _OUTPUT, _DOWN = "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj"
_SEED = 0
_ROWS = 4096  # turned together: an embedding in float64 would be large


@dataclass(frozen=True)
class Rotation:
    """Two orthogonal matrices, float64: `states` [hidden, hidden] and `values` [head, head]."""

    states: "torch.Tensor"
    values: "torch.Tensor"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Rotation":
        """The ones for a model of this configuration, always the same."""
        return cls(orthogonal(number(config, "hidden_size")), orthogonal(head_size(config)))

    @staticmethod
    def takes_rows(name: str) -> bool:
        """Whether rows of a tensor are turned one by one; others only the whole tensor."""
        return not any(f".{layer}." in name for layer in (_VALUES, _OUTPUT, _DOWN))

    def turned(
        self, name: str, weight: "torch.Tensor", gain: Callable[[str], "torch.Tensor"]
    ) -> "torch.Tensor":
        """The tensor `name`, turned, in float32; `gain` reads a norm's by its name. `weight` is
        the whole of it, or some rows if `takes_rows`."""
        import torch

        layer, kind = _parts(name)
        if kind.endswith("norm.weight"):
            return torch.ones_like(weight, dtype=torch.float32)
        found = weight.double()
        norm = LAST_NORM if name == HEAD else layer + _BEHIND.get(kind, "")
        reads = name == HEAD or kind in _BEHIND
        if reads:
            found = found * gain(norm)
        if kind.startswith(_VALUES):  # its bias too
            heads = found.view(-1, len(self.values), *found.shape[1:])
            found = torch.einsum("ij,hi...->hj...", self.values, heads).reshape(found.shape)
        if kind == f"{_OUTPUT}.weight":
            found = (found.view(len(found), -1, len(self.values)) @ self.values).view(found.shape)
        if kind.startswith((_OUTPUT, _DOWN)):
            found = self.states.T @ found
        elif reads or name == EMBEDDING:
            found = found @ self.states
        return found.float()

    def apply(self, model: Any) -> None:
        """Turns a running Llama or Qwen2 of transformers, in place; its head is its own then."""
        import torch

        head = torch.nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)
        model.lm_head.weight = head
        model.config.tie_word_embeddings = False
        named = dict(model.named_parameters())
        norms = [name for name in named if name.endswith("norm.weight")]
        gains = {name: named[name].detach().double().clone() for name in norms}
        for name, parameter in named.items():
            whole = parameter.data
            for rows in whole.split(_ROWS) if self.takes_rows(name) else (whole,):
                rows.copy_(self.turned(name, rows, gains.__getitem__))


def orthogonal(size: int) -> "torch.Tensor":
    """An orthogonal matrix [size, size], float64, of which no entry is large: Hadamard's of the
    power of two in `size`, times a cosine transform of what is left, in random signs."""
    import torch

    power = size & -size
    found = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(power.bit_length() - 1):
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    found = torch.kron(found / power**0.5, _cosines(size // power))
    generator = torch.Generator().manual_seed(_SEED)
    signs = torch.randint(0, 2, (size, 1), generator=generator).double() * 2 - 1
    return found * signs


def _cosines(size: int) -> "torch.Tensor":
    import torch

    at = torch.arange(size, dtype=torch.float64)
    found: torch.Tensor = torch.cos(pi / size * (at + 0.5) * at[:, None]) * (2 / size) ** 0.5
    found[0] /= 2**0.5
    return found


def _parts(name: str) -> tuple[str, str]:
    """A tensor's decoder layer, as a prefix, and what it is there; no layer: the whole name."""
    pieces = name.split(".")
    if len(pieces) > 3 and pieces[1] == "layers":
        return ".".join(pieces[:3]) + ".", ".".join(pieces[3:])
    return "", name
