"""`tunan serve --print-command`: the exact command and environment, as a shell script or JSON."""

import json
import shlex
from pathlib import Path

from tunan.ascend.recipe import SET_ENV, NodeCommand, node_commands
from tunan.config import Deployment
from tunan.supervisor.arguments import common_arguments, engine_arguments
from tunan.supervisor.directories import Directories
from tunan.supervisor.environment import engine_environment
from tunan.supervisor.machine import look
from tunan.supervisor.model_size import measure
from tunan.supervisor.process import launcher_command

# Only a running service has a socket of its own.
SOCKET = Path("/run/tunan/engine.sock")


def print_command(deployment: Deployment, target: str, as_json: bool) -> None:
    """Prints, on stdout, what `tunan serve` would run on each machine."""
    commands = _for_cpu(deployment) if target == "cpu" else _for_ascend(deployment, target)
    if as_json:
        listing = [
            {"node": c.address, "environment": c.environment, "command": list(c.arguments)}
            for c in commands
        ]
        print(json.dumps({"target": target, "nodes": listing}, ensure_ascii=False, indent=2))  # noqa: T201
        return
    print("\n\n".join(_script(command, target) for command in commands))  # noqa: T201


def _for_cpu(deployment: Deployment) -> tuple[NodeCommand, ...]:
    machine = look()
    size = measure(deployment.model.path, deployment.model.dtype)
    arguments = launcher_command(engine_arguments(machine, deployment, size, SOCKET))
    environment = engine_environment(machine, deployment, Directories.of_user())
    return (NodeCommand(None, environment, tuple(arguments)),)


def _for_ascend(deployment: Deployment, target: str) -> tuple[NodeCommand, ...]:
    has_manifest = (deployment.model.path / "tunan.json").is_file()
    return node_commands(deployment, target, tuple(common_arguments(deployment, has_manifest)))


def _script(command: NodeCommand, target: str) -> str:
    lines = [f"# {target}" + (f", on {command.address}" if command.address else "")]
    if target != "cpu":
        lines += [f". {script}" for script in SET_ENV]
    if "$NIC" in command.environment.values():
        lines.append(f"NIC=$(ip -o -4 addr show to {command.address} | awk '{{print $2; exit}}')")
    lines += [f"export {name}={_quoted(value)}" for name, value in command.environment.items()]
    words = [shlex.quote(word) for word in command.arguments]
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return "\n".join([*lines, " \\\n  ".join([" ".join(words[:first]), *words[first:]])])


def _quoted(value: str) -> str:
    return '"$NIC"' if value == "$NIC" else shlex.quote(value)
