"""The files beside an installation: environment, systemd units, Dockerfile, manifests."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunan import __version__
from tunan.ascend.recipe import SET_ENV
from tunan.config import Deployment, deployment_from
from tunan.errors import OutsideError, UsageError
from tunan.install.facts import packages, steps
from tunan.install.plan import Plan, values_of
from tunan.install.render import filled, of_chip, script, step_texts

# After the front door stopped taking requests: what ending the engine may take.
_ENDING_S = 30
_EXECUTABLE = ("install.sh", "with-env")


def files_of(plan: Plan, deployment: Deployment | None = None) -> Mapping[str, str]:
    """Path in the folder -> text. Without a `deployment` one of the size of a server is made up."""
    values: dict[str, str] = {**values_of(plan)}
    sample = filled("deploy.yaml", {"DEVICES": str(_devices(plan))})
    values |= _of_deployment(plan, deployment or _parsed(sample))
    values["SOURCES"] = "\n".join(_sourced(files) for files in SET_ENV)
    environment = filled("env_cpu.sh" if plan.is_cpu else "env.sh", values)
    written = {
        "install.sh": script(plan),
        "env.sh": environment,
        "with-env": filled("with-env", values),
        "systemd/tunan-serve.service": filled("tunan-serve.service", values),
        **_engine_unit(deployment, values),
        "systemd/tunan-monitor.service": filled("tunan-monitor.service", values),
        "Dockerfile": _dockerfile(plan, values, environment),
        "Dockerfile.dockerignore": filled("Dockerfile.dockerignore", values),
    }
    if deployment is None:
        written["deploy.yaml"] = sample
    return written | _manifests(plan, deployment, values, sample)


def _engine_unit(deployment: Deployment | None, values: Mapping[str, str]) -> dict[str, str]:
    if deployment is None or not _is_scripted(deployment):
        return {}
    return {"systemd/tunan-engine.service": filled("tunan-engine.service", values)}


def _is_scripted(deployment: Deployment) -> bool:
    """Whether the engine is started by the script of `--print-command`: `tunan serve` refuses to
    start one of several machines, or one that serves copies."""
    return len(deployment.nodes) > 1 or deployment.parallel.data > 1


def _sourced(files: Sequence[str]) -> str:
    """The first of `files` that is there; the last one fails where none is."""
    *firsts, last = files
    lines = [f". {last}"]
    for file in reversed(firsts):
        lines = [f"if [ -f {file} ]; then", f"    . {file}", "else",
                 *(f"    {line}" for line in lines), "fi"]  # fmt: skip
    return "\n".join(f"    {line}" for line in lines)


def write_files(folder: Path, files: Mapping[str, str], overwrite: bool) -> None:
    """Writes them; an existing file that says something else is a `UsageError` before any is.
    `OutsideError` where it cannot be written."""
    try:
        _write_files(folder, files, overwrite)
    except OSError as error:
        where = error.filename or folder
        raise OutsideError(
            f"{where}: {error.strerror}; name a folder that can be written"
        ) from None


def _write_files(folder: Path, files: Mapping[str, str], overwrite: bool) -> None:
    if not overwrite:
        for name, text in files.items():
            path = folder / name
            if path.is_file() and path.read_bytes() != text.encode():
                raise UsageError(f"{path} is there and differs; --overwrite replaces it")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.chmod(0o755 if name in _EXECUTABLE else 0o644)
        part.replace(path)


def _devices(plan: Plan) -> int:
    return 1 if plan.is_cpu else plan.family.devices


def _parsed(text: str) -> Deployment:
    import yaml

    return deployment_from(yaml.safe_load(text), "deploy.yaml")


def _of_deployment(plan: Plan, deployment: Deployment) -> dict[str, str]:
    nodes = max(1, len(deployment.nodes))
    # Kubernetes takes lower case, digits and hyphens.
    name = re.sub(r"[^a-z0-9-]", "-", deployment.name.lower()).strip("-")
    devices = deployment.parallel.world_size * max(1, deployment.replicas.managed) // nodes
    port = deployment.gateway.port or type(deployment.gateway)().port
    resource = "" if plan.is_cpu else plan.family.resource
    command = f"serve --config {plan.prefix}/deploy.yaml --target {plan.target}"
    wants = "network-online.target"
    if _is_scripted(deployment):
        engine = f"--replica http://127.0.0.1:{port + 1}"
        command = f"gateway --config {plan.prefix}/deploy.yaml {engine}"
        wants += " tunan-engine.service"
    quantity = f'{{{resource}: "{devices}"}}'
    return {
        "NAME": name,
        "IMAGE": f"{name}:{__version__}-{plan.target}",
        "PORT": str(port),
        "ENGINE_PORT": str(port + 1),
        "COMMAND": command,
        "WANTS": wants,
        "NODES": str(max(2, nodes)),
        "STOP_S": str(int(deployment.gateway.shutdown_timeout_s) + _ENDING_S),
        "SHARED_MEMORY": "16Gi",
        "GROUPS": "" if plan.is_cpu else "SupplementaryGroups=HwHiAiUser",
        "KUBERNETES_ARCH": {"aarch64": "arm64", "x86_64": "amd64"}[plan.machine],
        "RESOURCES": "resources: {}"
        if plan.is_cpu
        else f"resources: {{limits: {quantity}, requests: {quantity}}}",
    }


def _dockerfile(plan: Plan, values: Mapping[str, str], environment: str) -> str:
    data = packages()
    if plan.is_cpu:
        base, image = "debian", data.cpu_image
        names = steps().image_cpu
    else:
        base = plan.system
        system = data.systems[base].base
        image = f"{data.image}:{plan.release.cann}-{plan.family.image}-{system}-py3.12"
        names = of_chip(steps().image, plan)
    inner = {**values, **values_of(replace(plan, system=base, project=plan.prefix / "project"))}
    return filled(
        "Dockerfile",
        {
            **values,
            "BASE_IMAGE": image,
            "BEFORE": _before(plan, inner),
            "STEPS": step_texts(names, inner).strip(),
            "ENVIRONMENT": environment.strip(),
            "WITH_ENV": filled("with-env", values).strip(),
        },
    )


def _before(plan: Plan, values: Mapping[str, str]) -> str:
    return filled("project.sh" if plan.is_cpu else "online.sh", values).strip()


def _manifests(
    plan: Plan, deployment: Deployment | None, values: dict[str, str], sample: str
) -> dict[str, str]:
    given = deployment or _parsed(sample)
    several = len(given.nodes) > 1
    made = {}
    if not several and _is_scripted(given):
        made["kubernetes/deployment.yaml"] = _with_engine(given, values, {})
    elif not several:
        one = values | {"DEPLOYMENT": _config_text(given, {})}
        made["kubernetes/deployment.yaml"] = filled("kubernetes/common.yaml", one) + filled(
            "kubernetes/deployment.yaml", one
        )
    # A 310P has no network of its own to other machines: only who asks for that gets it.
    if not plan.is_cpu and (several or (deployment is None and plan.generation != "310P")):
        made["kubernetes/leaderworkerset.yaml"] = _leader_worker_set(given, values)
    return made


def _leader_worker_set(deployment: Deployment, values: dict[str, str]) -> str:
    """The pods' names stand for the machines: the controller gives each one in its service."""
    name, size = values["NAME"], int(values["NODES"])
    pods = [f"{name}-0.{name}", *(f"{name}-0-{index}.{name}" for index in range(1, size))]
    parallel: dict[str, Any] = {}
    if not deployment.nodes:  # The made-up one: a stage of the pipeline on each machine.
        parallel = {"parallel": {"tensor": deployment.parallel.tensor, "pipeline": size}}
    return _with_engine(deployment, values, {"nodes": pods, **parallel}, "leaderworkerset")


def _with_engine(
    deployment: Deployment,
    values: Mapping[str, str],
    changes: Mapping[str, Any],
    workload: str = "deployment_copies",
) -> str:
    """The manifests of an engine that its printed script starts, behind `tunan gateway`."""
    gateway = {"host": "127.0.0.1", "port": int(values["ENGINE_PORT"])}
    text = _config_text(deployment, {**changes, "gateway": gateway})
    filling = {**values, "DEPLOYMENT": text}
    for part in ("engine", "volumes", "front_door"):
        filling[part.upper()] = filled(f"kubernetes/{part}.yaml", filling).rstrip("\n")
    return filled("kubernetes/common.yaml", filling) + filled(
        f"kubernetes/{workload}.yaml", filling
    )


def _config_text(deployment: Deployment, changes: Mapping[str, Any]) -> str:
    """The deployment file, indented for a ConfigMap. The front door's flags are the manifest's."""
    import yaml

    content = deployment.model_dump(mode="json", exclude_unset=True)
    content.pop("gateway" if changes else "", None)
    text = yaml.safe_dump({**content, **changes}, allow_unicode=True, sort_keys=False)
    return "".join(f"    {line}\n" for line in text.splitlines()).rstrip("\n")
