"""Why an attempt at a replica ended without the rest of the answer."""

from dataclasses import dataclass

from tunan.gateway.responses import Headers


@dataclass(frozen=True)
class Refusal:
    """A whole answer of a replica that says no: passed on if no other replica does better."""

    status: int
    headers: Headers
    body: bytes


# Kinds that mean that the replica itself is gone or hangs, not only this answer.
DEATHS = frozenset({"reset", "stalled", "cut"})


class Lost(Exception):  # noqa: N818  # a state of affairs, caught where the next attempt is made
    """The replica will not answer this request: another one may.

    `kind` is one of `refused` (nothing listens), `exhausted` (it could not be asked), `reset`,
    `garbage`, `status` (a 5xx), `error` (an error event), `stalled`, `cut` (lost by the word of
    another), `moved` (the replica is taken away as planned).
    """

    def __init__(self, kind: str, detail: str, refusal: Refusal | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.refusal = refusal
