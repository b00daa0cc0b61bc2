"""One attempt at a stream whose events are read: each is passed on, until the answer is done."""

from typing import Protocol

from tunan.gateway.delivery import Delivery
from tunan.gateway.events import EventCutter, TokenEvent
from tunan.gateway.leg import Leg
from tunan.gateway.lost import Lost

SERVER_ERROR = 500
OK = 200
TOO_MANY = 429  # of a gateway or a limit before it: the next replica may have room


class Reader(Protocol):
    """What reads the events. `done`: the last has come; `progress`: tokens that have."""

    @property
    def done(self) -> bool: ...

    @property
    def progress(self) -> int: ...

    def take(self, event: TokenEvent | bytes) -> bytes:
        """What the client gets of one event. Raises `Lost`."""

    def forbid(self, why: str) -> None:
        """Nothing may follow what the client has."""


async def pass_on(leg: Leg, delivery: Delivery, reader: Reader) -> None:
    """What the opened `leg` answers. Raises `Lost`."""
    if leg.status != OK or not leg.is_event_stream:
        await _refused(leg, delivery, reader)
        return
    cutter = EventCutter()
    async for chunk in leg.chunks():
        out, lost = _read(cutter, chunk, leg, reader)
        if out:
            await delivery.start(leg.status, leg.headers)
            await delivery.write(out)
        if lost:
            raise lost
        if reader.done:
            await delivery.end()
            return
    raise Lost("reset", "the stream ended without [DONE]")


async def _refused(leg: Leg, delivery: Delivery, reader: Reader) -> None:
    """Hands the answer on if it is the client's, and the first. Raises `Lost` if not."""
    if leg.status >= SERVER_ERROR:
        raise Lost("status", str(leg.status), await leg.refusal())
    if not delivery.started:
        await delivery.whole(await leg.refusal())
        return
    if leg.status != TOO_MANY:
        reader.forbid(f"another replica refused it with status {leg.status}")
    raise Lost("status", str(leg.status))


def _read(cutter: EventCutter, chunk: bytes, leg: Leg, reader: Reader) -> tuple[bytes, Lost | None]:
    """What the client gets for `chunk`, and what then ends the leg.

    The reader remembers what is returned as sent, so it must be, whatever ends the leg.
    """
    out: list[bytes] = []
    before = reader.progress
    lost = None
    try:
        for event in cutter.feed(chunk):
            out.append(reader.take(event))
    except Lost as error:
        lost = error
    leg.answer.paid(reader.progress - before)
    return b"".join(out), lost
