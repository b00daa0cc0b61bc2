"""Hands a request to a replica and its answer back; after a loss, to the next one."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from tunan.config.deployment import Gateway
from tunan.gateway.body import BodyTooLargeError, BodyTooSlowError, ClientGoneError, read_body
from tunan.gateway.call import BadRequestError, Call, read_call
from tunan.gateway.delivery import Delivery
from tunan.gateway.health import Health
from tunan.gateway.leg import Leg
from tunan.gateway.lost import DEATHS, Lost
from tunan.gateway.metrics import Metrics
from tunan.gateway.pool import Pool
from tunan.gateway.queue import Queue, QueueFullError
from tunan.gateway.relay import Relay
from tunan.gateway.repeated_stream import RepeatedStream
from tunan.gateway.replica import RETRY_AFTER, Replica, Stage, UnixAddress
from tunan.gateway.responses import Receive, Scope
from tunan.gateway.stream import ResumableStream
from tunan.gateway.upstream import LOST, ExhaustedError, Upstreams

MIB = 1 << 20
OK = 200
Work = Relay | RepeatedStream | ResumableStream


class Proxy:
    """Forwards requests to the replicas of a pool."""

    def __init__(
        self,
        pool: Pool,
        upstreams: Upstreams,
        health: Health,
        settings: Gateway,
        metrics: Metrics,
    ) -> None:
        self._pool = pool
        self._upstreams = upstreams
        self._health = health
        self._settings = settings
        self._metrics = metrics
        self._sampler = _have_sampler(pool, settings)
        self._queue = Queue(pool, settings, metrics)

    async def forward(self, scope: Scope, receive: Receive, delivery: Delivery) -> int:
        """Answers one request; returns about how many tokens it used."""
        if not self._pool.ready:
            await self._not_ready(delivery)
            return 0
        if (call := await self._read(scope, receive, delivery)) is None:
            return 0
        work = self._work(call, delivery)
        await _until_gone(self._within_deadline(call, work, delivery), receive)
        return call.prompt_tokens + work.used

    async def replica_metrics(self) -> dict[str, str]:
        """The metrics of the replicas that are ready, by their name."""
        replicas = [replica for replica in self._pool.replicas if replica.ready]
        texts = await asyncio.gather(*(self._metrics_of(replica) for replica in replicas))
        names = [replica.name for replica in replicas]
        return {name: text for name, text in zip(names, texts, strict=True) if text}

    async def _metrics_of(self, replica: Replica) -> str:
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                async with await self._upstreams.request(replica, "GET", "/metrics") as answer:
                    return await answer.text() if answer.status == OK else ""
        except (*LOST, ExhaustedError, TimeoutError, UnicodeDecodeError):
            return ""

    def _work(self, call: Call, delivery: Delivery) -> Work:
        memory_bytes = int(self._settings.resume_memory_mib * MIB)
        if call.stream and call.plan.repeats:
            return RepeatedStream(call, delivery, memory_bytes=memory_bytes)
        if call.stream and call.plan.resumable:
            return ResumableStream(call, delivery, sampler=self._sampler, memory_bytes=memory_bytes)
        return Relay(call, delivery)

    async def _read(self, scope: Scope, receive: Receive, delivery: Delivery) -> Call | None:
        settings = self._settings
        close = [(b"connection", b"close")]
        try:
            body = await read_body(
                scope, receive, int(settings.max_body_mib * MIB), settings.body_timeout_s
            )
            return read_call(
                scope,
                body,
                request_id=delivery.request_id,
                resume=settings.resume,
                sampler=self._sampler,
                prefix_kib=settings.prefix_kib,
                max_prompt_tokens=settings.max_prompt_tokens,
            )
        except ClientGoneError:
            return None
        except BodyTooLargeError:
            message = f"the body is larger than {settings.max_body_mib:g} MiB"
            await delivery.error(413, "request_too_large", message, close)
        except BodyTooSlowError:
            message = f"the body did not come within {settings.body_timeout_s:g} s"
            await delivery.error(408, "request_timeout", message, close)
        except BadRequestError as error:
            await delivery.error(400, "invalid_request_error", str(error))
        return None

    async def _within_deadline(self, call: Call, work: Work, delivery: Delivery) -> None:
        limit = self._settings.request_timeout_s
        try:
            async with asyncio.timeout(limit):
                await self._answer(call, work, delivery)
        except TimeoutError:
            message = f"the answer was not complete within {limit:g} s"
            if delivery.started:
                await work.give_up(504, "request_timeout", message)
            else:
                await delivery.error(504, "request_timeout", message)

    async def _answer(self, call: Call, work: Work, delivery: Delivery) -> None:
        avoid: set[Replica] = set()
        home: Replica | None = None  # still has what it computed, so it reads the least again
        cut_off: set[Replica] = set()
        lost: Lost | None = None
        fruitless = deaths = 0
        while True:
            try:
                replica = home or await self._place(call, avoid, delivery.started)
            except QueueFullError:
                self._metrics.refused.labels("queue").inc()
                message = "too many requests are waiting"
                await delivery.error(429, "too_many_requests", message, [(b"retry-after", b"1")])
                return
            if replica is None:
                break
            before = work.progress
            try:
                # What has come is read once more, as part of the prompt.
                owed = max(call.tokens, call.prompt_tokens + work.progress)
                with replica.answering(owed) as answer:
                    answer.steady, answer.by_model = call.steady, call.tokens > 0
                    async with Leg(self._upstreams, replica, answer) as leg:
                        await work.run(leg)
                self._health.trust(replica)
                self._count(work)
                return
            except Lost as error:
                lost = error
                delivery.moves()
                self._metrics.losses.labels(replica.name, error.kind).inc()
                self._health.suspect(replica, error)
                if await work.ended_already():
                    self._count(work)
                    return
            grew = work.progress > before
            fruitless = 0 if grew else fruitless + 1
            avoid = {replica} if grew else avoid | {replica}
            # Only a connection broke, and for the first time: a second one is no accident.
            broke = lost.kind == "reset" and grew and replica not in cut_off
            home = replica if broke and await self._health.survives(replica) else None
            cut_off.add(replica)
            # What kills every replica that answers it must not be handed from one to the next.
            deaths += lost.kind in DEATHS
            spent = fruitless > self._settings.retries or deaths >= self._settings.max_losses
            if spent or not work.may_go_on:
                break
        await self._give_up(work, delivery, lost, deaths)

    async def _place(self, call: Call, avoid: set[Replica], started: bool) -> Replica | None:
        """Where to go next; a stream that has begun waits for a replica, others do not."""
        if not avoid:
            return await self._queue.place(call)
        if not started:
            return self._pool.choose(call.prefix_key, avoid)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.resume_wait_s):
                while True:
                    if replica := self._pool.choose(call.prefix_key, avoid):
                        return replica
                    if self._pool.ending:
                        return None
                    await self._pool.changed()
        return None

    def _count(self, work: Work) -> None:
        if not isinstance(work, Relay) and work.resumed:
            self._metrics.resumed.inc()
            self._metrics.prefilled.inc(work.prefilled)

    async def _give_up(
        self, work: Work, delivery: Delivery, lost: Lost | None, deaths: int
    ) -> None:
        shutting_down = self._pool.furthest.stage is Stage.DRAINING
        if delivery.started:
            self._metrics.broken.inc()
            if shutting_down:
                what = "the server is shutting down and could not wait for the rest of the answer"
                await work.give_up(503, "server_shutting_down", what)
            else:
                what = "the engine died before the answer was complete"
                if deaths >= self._settings.max_losses:
                    what = f"{deaths} replicas died under it, so it is not handed to another one"
                await work.give_up(502, "engine_lost", what)
        elif lost is not None and lost.refusal is not None:
            await delivery.whole(lost.refusal)
        elif lost is not None and lost.kind == "exhausted":
            message = f"the gateway cannot connect: {lost.detail}"
            await delivery.error(503, "service_unavailable", message, [(b"retry-after", b"3")])
        elif lost is None or shutting_down:
            await self._not_ready(delivery)
        else:
            message = "the engine closed the connection before it answered; ask again"
            await delivery.error(502, "engine_lost", message, [(b"retry-after", b"3")])

    async def _not_ready(self, delivery: Delivery) -> None:
        first = self._pool.furthest
        wait = str(RETRY_AFTER.get(first.stage, 1)).encode()
        message = f"the model is not ready: {self._pool.describe()}"
        if first.ready:  # it was, and all are busy
            message = "no replica had room in time"
        await delivery.error(503, "service_unavailable", message, [(b"retry-after", wait)])


def _have_sampler(pool: Pool, settings: Gateway) -> bool:
    """Whether the replicas sample so that another can go on; ours do."""
    if settings.resume_sampled is not None:
        return settings.resume_sampled
    return all(isinstance(replica.address, UnixAddress) for replica in pool.replicas)


async def _until_gone(answer: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Answers; a client that goes away closes the upstream request, which frees its slot."""
    work = asyncio.create_task(answer)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not work.done():
            work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
