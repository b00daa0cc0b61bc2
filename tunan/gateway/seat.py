"""A gateway's place in the queue of an election, and what its key in etcd says of it."""

import json
from dataclasses import dataclass
from enum import StrEnum

from tunan.gateway.etcd import Entry


class Cause(StrEnum):
    """Why a gateway does not hold the address any more, as the metrics tell."""

    LEASE = "lease"  # it could not be renewed in time
    STOPPED = "stopped"
    UNREADY = "unready"
    HOOK = "hook"
    REMOVED = "removed"  # somebody deleted the key
    DEFECT = "defect"


class OverError(Exception):
    """A stay in the queue is over; the text says why."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


@dataclass(frozen=True)
class Seat:
    """One gateway in the queue; `ready`: a replica behind it is."""

    key: str
    name: str
    ready: bool

    def entry(self) -> Entry:
        """As it is written to etcd."""
        value = {"name": self.name, "ready": self.ready}
        return Entry(self.key, json.dumps(value, ensure_ascii=False))


def seat_of(entry: Entry) -> Seat:
    """As it was read from etcd; a key that no gateway wrote is a seat too, that of its key."""
    try:
        told = json.loads(entry.value)
        return Seat(entry.key, str(told["name"]), told["ready"] is True)
    except (ValueError, KeyError, TypeError):
        return Seat(entry.key, entry.key, ready=False)
