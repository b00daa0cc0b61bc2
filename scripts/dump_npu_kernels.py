"""Writes what torch_npu registers as one JSON file, `tunan/ops/kernels/torch_npu-VERSION.json`.

Run it with a Python that can import torch and torch_npu; no device is needed, only libraries that
torch_npu can load (CANN, the emulator, or link stubs):

    python scripts/dump_npu_kernels.py --libraries "CANN 9.1.0" tunan/ops/kernels

The file has one operator a line, so that two versions can be compared with `diff`.
"""

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

DISPATCH_KEYS = {
    "PrivateUse1": "npu",
    "CompositeImplicitAutograd": "implicit",
    "CompositeExplicitAutograd": "explicit",
    "CompositeExplicitAutogradNonFunctional": "structured",
}
NOTES = {
    "npu": "torch_npu registered a kernel for the device",
    "implicit": "composed of other operators; with npu: the device's kernel does the whole",
    "explicit": "composed below autograd; with npu: the device's kernel goes first",
    "structured": "allocates its result and calls the overload .out",
    "cpu": "none of these: the fallback copies the inputs to the CPU and the result back",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="where the file goes")
    parser.add_argument(
        "--libraries", required=True, help="what stood in for CANN, to be written into the file"
    )
    args = parser.parse_args()
    import torch
    import torch_npu

    version = torch_npu.__version__
    names = sorted(torch._C._dispatch_get_all_op_names())
    content = {
        "torch_npu": version,
        "torch": torch.__version__,
        "derived_from": (
            f"the dispatcher's registrations after importing torch_npu {version} "
            f"(CPython {platform.python_version()}, {platform.machine()}) on torch "
            f"{torch.__version__}; libraries: {args.libraries}"
        ),
        "fallback": torch._C._dispatch_has_backend_fallback(torch._C.DispatchKey.PrivateUse1),
        "keys": NOTES,
        "aten": {name.removeprefix("aten::"): kinds(name) for name in of("aten", names)},
        "npu": {name.removeprefix("npu::"): custom(name) for name in of("npu", names)},
        "atb": {name.removeprefix("atb::"): custom(name) for name in of("atb", names)},
    }
    if not content["fallback"] or not content["npu"]:
        print("torch_npu registered nothing; is it installed?", file=sys.stderr)  # noqa: T201
        return 3
    target = args.directory / f"torch_npu-{version}.json"
    target.write_text(one_operator_a_line(content), encoding="utf-8")
    print(f"{target}: {len(content['aten'])} aten, {len(content['npu'])} npu operators")  # noqa: T201
    return 0


def of(namespace: str, names: list[str]) -> list[str]:
    """The operators of one namespace that have a schema (some have kernels and none)."""
    return [name for name in names if name.startswith(namespace + "::") and schema(name)]


def schema(name: str) -> str:
    """The schema of an operator, empty if it has none."""
    import torch

    base, _, overload = name.partition(".")
    try:
        return str(torch._C._get_schema(base, overload))
    except RuntimeError:
        return ""


def has(name: str, key: str) -> bool:
    import torch

    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def kinds(name: str) -> str:
    """Where an aten operator's kernel for the device comes from, as in NOTES."""
    found = [word for key, word in DISPATCH_KEYS.items() if has(name, key)]
    return " ".join(found) or "cpu"


def custom(name: str) -> dict[str, Any]:
    """Schema of a custom operator, and whether it has a Meta kernel and a device kernel."""
    return {"schema": schema(name), "meta": has(name, "Meta"), "npu": has(name, "PrivateUse1")}


def one_operator_a_line(content: dict[str, Any]) -> str:
    """JSON whose nested objects take one line an entry."""
    parts = []
    for key, value in content.items():
        if not isinstance(value, dict):
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
            continue
        entries = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
        parts.append(f"{json.dumps(key)}: {{\n{entries}\n}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
