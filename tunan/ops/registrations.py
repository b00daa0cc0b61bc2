"""What torch_npu registers, from the data files that `scripts/dump_npu_kernels.py` wrote.

Nothing here needs torch_npu: a file a version lies in `kernels/`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from tunan.errors import UsageError

DATA = Path(__file__).with_name("kernels")
DEFAULT_VERSION = "2.10.0.post4"  # the pair that vllm-ascend 0.23.0.post1 is released for


class Origin(StrEnum):
    """Where the code comes from that runs an operator on the device."""

    KERNEL = "kernel"  # torch_npu registered one
    COMPOSED = "composed"  # torch composes it of other operators
    CPU = "cpu"  # torch_npu's fallback: inputs to the CPU, result back
    UNKNOWN = "unknown"  # not an operator of torch or torch_npu


@dataclass(frozen=True)
class Registrations:
    """The operators of one torch_npu version. Names are `namespace::operator.overload`."""

    torch_npu: str
    derived_from: str
    aten: Mapping[str, frozenset[str]]
    custom: Mapping[str, Mapping[str, Any]]

    def origin(self, name: str) -> Origin:
        """Where the device's code for an operator comes from."""
        if name in self.custom:
            return Origin.KERNEL if self.custom[name]["npu"] else Origin.COMPOSED
        words = self.aten.get(name.removeprefix("aten::"))
        if words is None:
            return Origin.UNKNOWN
        if "npu" in words:
            return Origin.KERNEL
        if "structured" in words:
            return Origin.KERNEL if self._out_has_kernel(name) else Origin.CPU
        if words & {"implicit", "explicit"}:
            return Origin.COMPOSED
        return Origin.CPU

    def has_kernel(self, name: str) -> bool:
        """Whether torch_npu itself registered a kernel, not counting overloads `.out`."""
        return "npu" in self.aten.get(name.removeprefix("aten::"), ()) or bool(
            self.custom.get(name, {}).get("npu")
        )

    def replaces_composition(self, operator: str) -> str | None:
        """The first overload of an aten operator that torch composes of others while torch_npu
        has a kernel for the whole (`matmul`, `scaled_dot_product_attention`)."""
        return _compositions_replaced(self.torch_npu).get(operator)

    def schema(self, operator: str) -> str:
        """The schema of a custom operator such as `npu::npu_rms_norm`; raises KeyError."""
        return str(self.custom[operator]["schema"])

    def _out_has_kernel(self, name: str) -> bool:
        base, _, overload = name.removeprefix("aten::").partition(".")
        base = base[:-1] if base.endswith("_") and not base.endswith("__") else base
        outs = (f"{base}.{overload}_out", f"{base}.out")
        return any("npu" in self.aten.get(out, ()) for out in outs)


def versions() -> tuple[str, ...]:
    """The torch_npu versions there are data files of."""
    prefix = "torch_npu-"
    return tuple(sorted(f.stem.removeprefix(prefix) for f in DATA.glob(prefix + "*.json")))


@cache
def registrations(version: str = DEFAULT_VERSION) -> Registrations:
    """The operators of a torch_npu version; raises UsageError if there is no data of it."""
    if version not in versions():
        raise UsageError(
            f"no operator list of torch_npu {version}; there are {', '.join(versions())} "
            "(scripts/dump_npu_kernels.py writes one)"
        )
    text = (DATA / f"torch_npu-{version}.json").read_text(encoding="utf-8")
    content = json.loads(text)
    return Registrations(
        torch_npu=content["torch_npu"],
        derived_from=content["derived_from"],
        aten={name: frozenset(words.split()) for name, words in content["aten"].items()},
        custom={
            f"{namespace}::{name}": entry
            for namespace in ("npu", "atb")
            for name, entry in content[namespace].items()
        },
    )


@cache
def _compositions_replaced(version: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, words in registrations(version).aten.items():
        overload = name.partition(".")[2]
        named = overload.endswith("out") or "name" in overload.lower()
        if {"npu", "implicit"} <= words and not named:
            found.setdefault(name.partition(".")[0], f"aten::{name}")
    return found
