"""The deployment: the one schema and the one home of defaults (see docs/en/configuration.md)."""

from tunan.config.deployment import (
    Deployment,
    Gateway,
    Memory,
    Model,
    Parallel,
    Scheduler,
    Warmup,
)
from tunan.config.etcd import Etcd
from tunan.config.loading import deployment_from, load_deployment
from tunan.config.monitor import Monitor
from tunan.config.replicas import RemoteReplica, Replicas, Restart
from tunan.config.unavailable import refuse_unavailable

__all__ = [
    "Deployment",
    "Etcd",
    "Gateway",
    "Memory",
    "Model",
    "Monitor",
    "Parallel",
    "RemoteReplica",
    "Replicas",
    "Restart",
    "Scheduler",
    "Warmup",
    "deployment_from",
    "load_deployment",
    "refuse_unavailable",
]
