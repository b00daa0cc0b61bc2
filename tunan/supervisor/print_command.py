"""`tunan serve --print-command`: the exact command and environment, as a shell script or JSON."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from tunan.ascend.recipe import SET_ENV, NodeCommand, is_address, node_commands
from tunan.ascend.target import (
    CANN_VERSION,
    TORCH_NPU_VERSION,
    VLLM_ASCEND_VERSION,
    VLLM_VERSION,
)
from tunan.config import Deployment
from tunan.errors import UsageError
from tunan.notices import warn
from tunan.supervisor.arguments import common_arguments
from tunan.supervisor.directories import Directories
from tunan.supervisor.launch import plan_launch, shares_of
from tunan.supervisor.model_size import measure
from tunan.supervisor.process import launcher_command

# `serve` makes a private directory for each run; the script makes one in the same way.
RUNTIME = Path("$RUN")
MAKE_RUNTIME = "RUN=$(mktemp -d /tmp/tunan-XXXXXXXX) || exit 3"


def print_command(
    deployment: Deployment, target: str, as_json: bool, node: int | None = None
) -> None:
    """Prints, on stdout, what `tunan serve` would run on each machine, or on that of `node` alone.

    Raises `UsageError` for a node that the deployment does not have.
    """
    # Whoever runs the script may be elsewhere.
    model = deployment.model.model_copy(update={"path": deployment.model.path.absolute()})
    deployment = deployment.model_copy(update={"model": model})
    commands = _for_cpu(deployment) if target == "cpu" else _for_ascend(deployment, target)
    if node is not None:
        commands = _of_node(commands, node)
    if as_json:
        listing = [
            {"node": c.address, "environment": c.environment, "command": list(c.arguments)}
            for c in commands
        ]
        print(json.dumps({"target": target, "nodes": listing}, ensure_ascii=False, indent=2))  # noqa: T201
        return
    alone = node is not None and len(commands) == 1
    print("\n\n".join(_script(command, target, becomes=alone) for command in commands))  # noqa: T201


def _of_node(commands: tuple[NodeCommand, ...], node: int) -> tuple[NodeCommand, ...]:
    several = [command for command in commands if command.address is not None]
    if several and 0 <= node < len(several):
        return (several[node],)
    if several:
        raise UsageError(f"--node {node}: there are nodes 0 to {len(several) - 1}, 0 is the head")
    if node != 0:
        raise UsageError(f"--node {node}: the deployment file names no `nodes`; 0 is the only one")
    return commands


def _for_cpu(deployment: Deployment) -> tuple[NodeCommand, ...]:
    size = measure(deployment.model.path, deployment.model.dtype)
    launches = [
        plan_launch(share, "cpu", size, RUNTIME, Directories.of_user(), machine=machine)
        for share, machine in shares_of(deployment, "cpu")
    ]
    return tuple(
        NodeCommand(None, launch.environment, tuple(launcher_command(launch.arguments)))
        for launch in launches
    )


def _for_ascend(deployment: Deployment, target: str) -> tuple[NodeCommand, ...]:
    path = deployment.model.path
    if not path.is_dir():
        warn(
            f"{path} is not on this machine, so what depends on the checkpoint is left out: add "
            "--load-format=tunan if it is a converted one, --enable-expert-parallel if it has "
            "experts, --quantization=ascend if it has a quant_model_description.json"
        )
    if deployment.nodes and deployment.replicas.managed > 1:
        raise UsageError(
            "`nodes` with several replicas: print one of them (replicas.count: 1), and name its "
            "machines and devices for each"
        )
    flags = tuple(common_arguments(deployment, (path / "tunan.json").is_file()))
    return tuple(
        command
        for number, (share, _) in enumerate(shares_of(deployment, target))
        for command in node_commands(_on_its_port(share, number), target, flags)
    )


def _on_its_port(deployment: Deployment, replica: int) -> Deployment:
    """By hand each replica listens itself, on a port of its own."""
    port = deployment.gateway.port and deployment.gateway.port + replica
    gateway = deployment.gateway.model_copy(update={"port": port})
    return deployment.model_copy(update={"gateway": gateway})


def _script(command: NodeCommand, target: str, becomes: bool) -> str:
    """`becomes`: the shell becomes the engine, so that signals meant for it arrive."""
    lines = [f"# {target}" + (f", on {command.address}" if command.address else "")]
    if target != "cpu":
        lines.append(
            f"# for vLLM {VLLM_VERSION}, vllm-ascend {VLLM_ASCEND_VERSION}, torch_npu "
            f"{TORCH_NPU_VERSION} and CANN {CANN_VERSION}"
        )
        for scripts in SET_ENV:
            lines += _sourced(scripts)
    if "$NIC" in command.environment.values():
        lines += _look_up(str(command.address))
    if any(str(RUNTIME) in value for value in command.environment.values()):
        lines.append(MAKE_RUNTIME)
    lines += [f"export {name}={_quoted(value)}" for name, value in command.environment.items()]
    words = [_quoted(word) for word in command.arguments]
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    if becomes:
        words[0] = f"exec {words[0]}"
    return "\n".join([*lines, " \\\n  ".join([" ".join(words[:first]), *words[first:]])])


def _sourced(scripts: Sequence[str]) -> list[str]:
    """The first of `scripts` that is there."""
    advice = f"no {' and no '.join(scripts)}: install CANN {CANN_VERSION} with nnal"
    if len(scripts) == 1:
        return [_stop_unless(f"-f {scripts[0]}", advice), f". {scripts[0]}"]
    return [
        f'for SET_ENV in {" ".join(scripts)}; do [ ! -f "$SET_ENV" ] || break; done',
        _stop_unless('-f "$SET_ENV"', advice),
        "# shellcheck source=/dev/null",
        '. "$SET_ENV"',
    ]


def _look_up(address: str) -> list[str]:
    """Sets NIC, and ADDRESS where a name is all that is known; it may come up after the node."""
    lines, own = [], address
    if not is_address(address):
        ask = f"getent ahostsv4 {shlex.quote(address)} | awk '{{print $1; exit}}'"
        lines = [
            "for _ in $(seq 60); do",
            f"  ADDRESS=$({ask})",
            '  [ -z "$ADDRESS" ] || break',
            "  sleep 2",
            "done",
            _stop_unless('-n "$ADDRESS"', f"nothing is called {address}"),
        ]
        own = '"$ADDRESS"'
    return [
        *lines,
        f"NIC=$(ip -o -4 addr show to {own} | awk '{{print $2; exit}}')",
        _stop_unless('-n "$NIC"', f"no interface has {address}"),
    ]


def _stop_unless(condition: str, message: str) -> str:
    return f"[ {condition} ] || {{ echo {shlex.quote(message)} >&2; exit 3; }}"


def _quoted(word: str) -> str:
    """For a shell, with the variables that the script itself sets left open."""
    for variable in ("$NIC", "$ADDRESS", str(RUNTIME)):
        if variable in word:
            before, after = word.split(variable, 1)
            return f'{shlex.quote(before) if before else ""}"{variable}"{after}'
    return shlex.quote(word)
