"""Holds a tree of vLLM sources against the names and parameters that Tunan's loader uses."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tunan import engine

OURS = ("compat.py", "loader.py")

# What is called, or overridden, by name: module, function or method, its parameters in order.
SIGNATURES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "model_executor.model_loader.base_loader",
        "BaseModelLoader.__init__",
        ("self", "load_config"),
    ),
    (
        "model_executor.model_loader.base_loader",
        "BaseModelLoader.download_model",
        ("self", "model_config"),
    ),
    (
        "model_executor.model_loader.base_loader",
        "BaseModelLoader.load_weights",
        ("self", "model", "model_config"),
    ),
    (
        "model_executor.model_loader.base_loader",
        "BaseModelLoader.load_model",
        ("self", "vllm_config", "model_config", "prefix"),
    ),
    ("model_executor.model_loader", "register_model_loader", ("load_format",)),
    ("model_executor.model_loader", "get_model_loader", ("load_config",)),
    (
        "model_executor.model_loader.utils",
        "process_weights_after_loading",
        ("model", "model_config", "target_device"),
    ),
    (
        "model_executor.model_loader.ep_weight_filter",
        "compute_local_expert_ids",
        ("num_experts", "ep_size", "ep_rank", "placement"),
    ),
    (
        "model_executor.layers.linear",
        "UnquantizedLinearMethod.process_weights_after_loading",
        ("self", "layer"),
    ),
    (
        "model_executor.layers.fused_moe.unquantized_fused_moe_method",
        "UnquantizedFusedMoEMethod.process_weights_after_loading",
        ("self", "layer"),
    ),
    ("distributed.parallel_state", "get_tensor_model_parallel_rank", ()),
    ("distributed.parallel_state", "get_tensor_model_parallel_world_size", ()),
)


def problems(tree: Path) -> list[str]:
    """What the loader needs and the package `vllm` below `tree` does not have."""
    missing = [
        f"vllm.{module}: no {name}"
        for module, name in sorted(set(_imported()))
        if name not in _defined(tree, module)
    ]
    for module, qualified, expected in SIGNATURES:
        found = _parameters(tree, module, qualified)
        if found != expected:
            missing.append(f"vllm.{module}.{qualified}: {found} instead of {expected}")
    return missing


def _imported() -> Iterator[tuple[str, str]]:
    """(module below vllm, name) of every import in our files, wherever it stands."""
    for file in OURS:
        path = Path(engine.__file__).with_name(file)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm."):
                for alias in node.names:
                    yield str(node.module).removeprefix("vllm."), alias.name


def _module(tree: Path, module: str) -> list[ast.stmt]:
    base = tree / "vllm" / module.replace(".", "/")
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8")).body
    return []


def _defined(tree: Path, module: str) -> set[str]:
    names: set[str] = set()
    for node in _module(tree, module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.If):  # platforms: names made on demand by __getattr__
            names |= {
                inner.target.id
                for inner in node.body
                if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name)
            }
    return names


def _parameters(tree: Path, module: str, qualified: str) -> tuple[str, ...] | None:
    body = _module(tree, module)
    *classes, function = qualified.split(".")
    for name in classes:
        body = next((n.body for n in body if isinstance(n, ast.ClassDef) and n.name == name), [])
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return tuple(a.arg for a in [*node.args.posonlyargs, *node.args.args])
    return None
