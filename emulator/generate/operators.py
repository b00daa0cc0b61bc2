"""Turns operators.txt into the C entry points of libopapi.so.

`python operators.py operators.txt OUT.cpp`. For each operator it writes `aclnnXGetWorkspaceSize`,
with the very argument types of the table, and `aclnnX`; what they do is in src/operators.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

# Table's type -> (type in C, Kind in operator.h)
TYPES = {
    "Tensor": ("const aclTensor*", "Tensor"),
    "Scalar": ("const aclScalar*", "Scalar"),
    "ints": ("const aclIntArray*", "Ints"),
    "floats": ("const aclFloatArray*", "Floats"),
    "bools": ("const aclBoolArray*", "Bools"),
    "Tensors": ("const aclTensorList*", "Tensors"),
    "Scalars": ("const aclScalarList*", "Scalars"),
    "int": ("int64_t", "Integer"),
    "uint": ("uint64_t", "Integer"),
    "int32": ("int32_t", "Integer"),
    "int8": ("int8_t", "Integer"),
    "dtype": ("int32_t", "Integer"),
    "bool": ("bool", "Flag"),
    "double": ("double", "Real"),
    "float": ("float", "Real"),
    "str": ("const char*", "Text"),
}
DTYPES = {
    "": "",
    "real": "DT_FLOAT,DT_FLOAT16,DT_BFLOAT16",
    "half": "DT_FLOAT16,DT_BFLOAT16",
    "i8": "DT_INT8",
    "i32": "DT_INT32",
    "low": "DT_INT8,DT_INT32",
    "i64": "DT_INT64",
    "single": "DT_FLOAT",
    "scale": "DT_FLOAT,DT_FLOAT16,DT_BFLOAT16,DT_INT64,DT_UINT64",
    "index": "DT_INT32,DT_INT64",
    "wide": "DT_FLOAT,DT_FLOAT16,DT_BFLOAT16,DT_DOUBLE",
}
PARAMETER = re.compile(r"(\w+)(!?):(\w+)(\??)(?:<(\w+)>)?$")


@dataclass
class Operator:
    name: str
    bounded: bool  # `Name*`: there is also aclnnNameGetMaxWorkspaceSize, for graphs
    parameters: list[tuple[str, bool, str, bool, str]]  # name, written, type, optional, dtypes
    function: str
    bindings: list[str]


def expand(lines: list[str]) -> list[str]:
    """Replaces `each NAMES: line with $ and %` by one line a `Name=function`."""
    whole: list[str] = []
    for line in lines:
        if not line.startswith("each "):
            whole.append(line)
            continue
        names, pattern = line.removeprefix("each ").split(":", 1)
        for pair in names.split():
            name, _, function = pair.partition("=")
            whole.append(pattern.strip().replace("$", name).replace("%", function or name.lower()))
    return whole


def logical_lines(text: str) -> list[str]:
    """The table's lines without comments, those that end in a backslash joined."""
    plain = re.sub(r"(?m)#(?![\w\[-]).*$", "", text).replace("\\\n", " ")
    return [" ".join(line.split()) for line in plain.splitlines() if line.strip()]


def parse(line: str) -> Operator:
    left, _, right = line.partition(" = ")
    if not right:
        sys.exit(f"operators.txt: no kernel in: {line}")
    name, *words = left.split()
    parameters = []
    for word in words:
        match = PARAMETER.match(word)
        if not match or match[3] not in TYPES or (match[5] or "") not in DTYPES:
            sys.exit(f"operators.txt: cannot read {word!r} in: {line}")
        parameters.append((match[1], bool(match[2]), match[3], bool(match[4]), match[5] or ""))
    function, *bindings = right.split()
    known = {parameter[0] for parameter in parameters}
    for binding in bindings:
        value = binding.partition("=")[2] or binding
        if not value.startswith("#") and value.lstrip("@") not in known:
            sys.exit(f"operators.txt: {binding!r} is no parameter in: {line}")
    return Operator(name.rstrip("*"), name.endswith("*"), parameters, function, bindings)


def emit(op: Operator) -> str:
    kinds = ", ".join(
        f'{{"{name}", Kind::{TYPES[kind][1]}, {str(optional).lower()}, {str(written).lower()},'
        f' "{DTYPES[dtypes]}"}}'
        for name, written, kind, optional, dtypes in op.parameters
    )
    pairs = (binding.partition("=") for binding in op.bindings)
    bound = ", ".join(
        f'{{"{left if equals else ""}", "{right if equals else left}"}}'
        for left, equals, right in pairs
    )
    declared = ", ".join(f"{TYPES[kind][0]} {name}_" for name, _, kind, _, _ in op.parameters)
    passed = ", ".join(f"Raw({name}_)" for name, *_ in op.parameters)
    aten = str(op.function.startswith("aten::")).lower()
    sized = f"({declared}, uint64_t* workspace, aclOpExecutor** executor)"
    lines = [
        f'static const Operator op_{op.name}{{"aclnn{op.name}", "{op.function}", {aten},',
        f"    {{{kinds}}}, {{{bound}}}}};",
        f'extern "C" int aclnn{op.name}GetWorkspaceSize{sized} {{',
        f"  return prepare(op_{op.name}, {{{passed}}}, workspace, executor);",
        "}",
        f'extern "C" int aclnn{op.name}(void*, uint64_t, aclOpExecutor* executor, void* stream) {{',
        "  return launch(executor, stream);",
        "}",
    ]
    if op.bounded:
        lines += [
            f'extern "C" int aclnn{op.name}GetMaxWorkspaceSize{sized} {{',
            "  *workspace = MAX_WORKSPACE;",
            "  *executor = nullptr;",
            "  return 0;",
            "}",
        ]
    return "\n".join([*lines, "", ""])


def main() -> None:
    table, out = Path(sys.argv[1]), Path(sys.argv[2])
    operators = [parse(line) for line in expand(logical_lines(table.read_text()))]
    names = [op.name for op in operators]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit(f"operators.txt: described twice: {', '.join(sorted(twice))}")
    head = (
        "// Generated from operators.txt: do not edit.\n"
        '#include "operator.h"\n\n'
        "using namespace tunan;\n"
        "static constexpr uint64_t MAX_WORKSPACE = 512;\n\n"
    )
    out.write_text(head + "".join(emit(op) for op in operators))


if __name__ == "__main__":
    main()
