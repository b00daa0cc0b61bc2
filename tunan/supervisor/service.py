"""`tunan serve`: one front door, its replicas, from bind to exit status.

The front door is bound first and answers from then on; the engines are started, warmed up, watched,
started again when they die, and on SIGTERM drained and ended. The service itself ends, with the
last error in one line, when a first start fails or every replica has failed too often.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from tunan.ascend.emulated import EmulatedDevices
from tunan.config import Deployment, Gateway
from tunan.gateway.app import front_door
from tunan.gateway.election import election_of, taking_part
from tunan.gateway.pool import Pool
from tunan.gateway.replica import HttpAddress, Replica, Role, UnixAddress
from tunan.gateway.saying import saying_missing
from tunan.gateway.server import address_of, bind, serving
from tunan.supervisor.control import controlled
from tunan.supervisor.device_memory import IsFree, always_free, nobody_has
from tunan.supervisor.directories import Directories, runtime_directory
from tunan.supervisor.fleet import Fleet
from tunan.supervisor.launch import Launch, launchers_of
from tunan.supervisor.life import Life, Plan
from tunan.supervisor.log_file import log_of
from tunan.supervisor.model_size import ModelSize, check_blocks, measure
from tunan.supervisor.orders import Orders, Stop
from tunan.supervisor.report import Report


@dataclass(frozen=True)
class Options:
    """How this run of the service behaves, beside the deployment."""

    target: str = "cpu"
    emulated: EmulatedDevices | None = None
    verbose: bool = False
    as_json: bool = False
    directories: Directories = field(default_factory=Directories.of_user)


def serve(deployment: Deployment, options: Options) -> int:
    """Serves until told to stop: 0 after a drain. Raises `UsageError` or `OutsideError`."""
    return asyncio.run(_serve(deployment, options))


async def _serve(deployment: Deployment, options: Options) -> int:
    gateway, report, stop = gateway_of(deployment, options), Report(options.as_json), Stop()
    stop.install()
    size = _checked_size(deployment) if deployment.replicas.managed else None
    with (
        contextlib.closing(bind(gateway.host, gateway.port)) as listener,
        runtime_directory() as runtime,
    ):
        port = listener.getsockname()[1]
        plans = _plans(deployment, options, runtime, port, size) if size else ()
        pool = Pool(_replicas(deployment, plans))
        address = address_of(listener, tls=gateway.tls_cert_file is not None)
        fleet = Fleet(deployment, pool, report, stop, address)
        fleet.lives = tuple(
            Life(
                plan,
                replica,
                Orders(stop.insisted),
                fleet.about(replica),
                may_retry=fleet.has_served,
                on_failed=fleet.life_failed,
            )
            for plan, replica in zip(plans, pool.replicas, strict=False)
        )
        fleet.election = election_of(
            gateway.etcd, port, pool, lambda text: report.event("holder", f"tunan: {text}")
        )
        async with front_door(pool, gateway, fleet.election) as app:
            _announce(deployment, plans, pool, report, fleet.address)
            async with (
                serving(app, listener),
                controlled(runtime, fleet),
                taking_part(fleet.election, stop.asked),
                saying_missing(
                    pool.replicas[len(plans) :],
                    lambda replica, text: report.event(
                        "away", f"tunan: {text}", replica=replica.name, what=replica.describe()
                    ),
                    gateway.probe_timeout_s + gateway.probe_interval_s,
                ),
            ):
                return await fleet.run()


def gateway_of(deployment: Deployment, options: Options) -> Gateway:
    """The gateway's settings; on an NPU sampled streams are left to vLLM's sampler unless the
    deployment says otherwise: the noise of ours would be made on the host and copied at each step.
    """
    gateway = deployment.gateway
    if gateway.resume_sampled is not None or options.target == "cpu":
        return gateway
    return gateway.model_copy(update={"resume_sampled": False})


def _checked_size(deployment: Deployment) -> ModelSize:
    check_blocks(deployment.model.path, deployment.parallel.tensor)
    return measure(deployment.model.path, deployment.model.dtype)


def _plans(
    deployment: Deployment, options: Options, runtime: Path, port: int, size: ModelSize
) -> tuple[Plan, ...]:
    """One for each replica that is started here, the active ones first."""
    launchers = launchers_of(
        deployment, options.target, size, runtime, options.directories, options.emulated
    )
    state, alone = options.directories.state, len(launchers) == 1
    starts = [(share, launch(share), launch) for share, launch in launchers]
    return tuple(
        Plan(
            share,
            launch,
            launch.directory,
            log_of(
                state, deployment.name, deployment.gateway.host, port, None if alone else number
            ),
            options.verbose,
            _memory_is_free(launch, options.emulated),
            relaunch,
        )
        for number, (share, launch, relaunch) in enumerate(starts)
    )


def _memory_is_free(launch: Launch, emulated: EmulatedDevices | None) -> IsFree:
    """For devices whose memory is not that of its processes, whether nobody has them open."""
    if emulated is None and launch.devices:
        return nobody_has(launch.devices)
    if emulated and emulated.state:
        return nobody_has(launch.devices, files_in=emulated.state)
    return always_free


def _replicas(deployment: Deployment, plans: tuple[Plan, ...]) -> list[Replica]:
    """First those that are started here, in the order of `plans`."""
    here = [
        Replica(
            UnixAddress(plan.socket),
            f"replica-{number}",
            Role.ACTIVE if number < deployment.replicas.count else Role.STANDBY,
        )
        for number, plan in enumerate(plans)
    ]
    elsewhere = [
        Replica(HttpAddress(remote.url), f"replica-{number}", Role(remote.role))
        for number, remote in enumerate(deployment.replicas.elsewhere, len(here))
    ]
    return [*here, *elsewhere]


def _announce(
    deployment: Deployment, plans: tuple[Plan, ...], pool: Pool, report: Report, address: str
) -> None:
    model, device = deployment.served_model_name, plans[0].launch.device if plans else "elsewhere"
    logs = [str(plan.log) for plan in plans]
    if len(pool.replicas) == 1 and plans:
        text = f"starting {model} on {device}; log: {logs[0]}"
    else:
        away = f" and {len(pool.replicas) - len(plans)} elsewhere" if plans else " elsewhere"
        away = away if len(pool.replicas) > len(plans) else ""
        here = f"{len(plans)} on {device}" if plans else f"{len(pool.replicas)}"
        text = f"starting {model}, replicas: {here}{away}; logs: {', '.join(logs) or 'none here'}"
    report.event(
        "starting",
        f"tunan: {text}",
        model=model,
        device=device,
        address=address,
        log=logs[0] if logs else "",
        replicas=[
            {"name": replica.name, "role": str(replica.role), "address": str(replica.address)}
            for replica in pool.replicas
        ],
        logs=logs,
    )
