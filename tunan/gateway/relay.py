"""Passes an answer on as it comes, unread. Asked again elsewhere only while nothing was sent."""

import re

from tunan.gateway.call import GENERATION, Call
from tunan.gateway.delivery import Delivery
from tunan.gateway.leg import Leg
from tunan.gateway.lost import Lost, Refusal

SERVER_ERROR = 500
_END_OF_EVENT = b"\n\n"
_GENERATED = re.compile(rb'"completion_tokens": ?([0-9]{1,9})')


class Relay:
    """One request that is not continued in the middle."""

    def __init__(self, call: Call, delivery: Delivery) -> None:
        self._call = call
        self._delivery = delivery
        self._events = False
        self.used = 0  # tokens of the answer, as it tells or by its events

    @property
    def may_go_on(self) -> bool:
        """Whether another replica may be asked after a loss."""
        return self._call.repeatable and not self._delivery.started

    @property
    def progress(self) -> int:
        """Nothing counts as progress: what was sent cannot be continued."""
        return 0

    async def ended_already(self) -> bool:
        """Never known: nothing of it is read."""
        return False

    async def run(self, leg: Leg) -> None:
        """One attempt. Raises `Lost`."""
        call = self._call
        await leg.open(call.method, call.target, call.headers, call.first_body())
        if leg.status >= SERVER_ERROR and call.repeatable:
            raise Lost("status", str(leg.status), await leg.refusal())
        if not leg.is_event_stream and call.path in GENERATION:
            # Nothing of it is sent before all of it is here, so that it can be asked again.
            body = await leg.whole()
            self.used = max((int(told) for told in _GENERATED.findall(body)), default=0)
            await self._delivery.whole(Refusal(leg.status, leg.headers, body))
            return
        self._events = leg.is_event_stream
        async for chunk in leg.chunks():
            await self._delivery.start(leg.status, leg.headers)
            await self._delivery.write(chunk)
            self.used += chunk.count(_END_OF_EVENT) if self._events else 0
        await self._delivery.start(leg.status, leg.headers)
        await self._delivery.end()

    async def give_up(self, status: int, kind: str, message: str) -> None:
        """The answer has begun and cannot be ended: a stream is told so, anything is cut."""
        if self._events:
            await self._delivery.error_event(status, kind, message)
