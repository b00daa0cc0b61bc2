"""etcd's v3 API over its own JSON gateway: what an election needs, and no more.

Paths and messages: https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/. Any member answers for
all of them; one that does not answer is passed over.
"""

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp

from tunan.config.etcd import Etcd
from tunan.errors import UsageError
from tunan.gateway.tls import client_context
from tunan.small_file import read_small

OK, UNAUTHENTICATED = 200, 401
# 4xx, but of the member and not of the question: gRPC's codes for a deadline, and for no leader.
_PASSING = frozenset({408, 429})
_NO_TOKEN = ("invalid auth token", "user name is empty")  # as 3.4 and 3.5 say it
# For what has to be written to disks first; everything else is answered from memory.
WRITING_S = 3.0


class EtcdError(Exception):
    """etcd could not be asked, or refused: one line that says which and why."""


@dataclass(frozen=True)
class Lease:
    """A promise of etcd to keep keys for `ttl_s` seconds after it was last asked to."""

    id: str
    ttl_s: float


@dataclass(frozen=True)
class Entry:
    """A key under the prefix, as its gateway wrote it."""

    key: str
    value: str


class EtcdClient:
    """Asks the members of one cluster. `quick_s` is how long one of them may take to answer."""

    def __init__(self, settings: Etcd, quick_s: float) -> None:
        """Raises `UsageError` if a file that `settings` name cannot be used."""
        self._endpoints = settings.endpoints
        self._first = 0  # the member that answered last
        self._quick_s = quick_s
        self._tls = client_context(
            settings.ca_file, settings.cert_file, "gateway.etcd.ca_file, cert_file"
        )
        files = (settings.ca_file, settings.cert_file)
        self._files = [None if file is None else str(file.absolute()) for file in files]
        self._user = settings.user
        self._password = _password(settings.password_file)
        self._token = ""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Opens the pool of connections."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls or True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._quick_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it."""
        if self._session is not None:
            await self._session.close()

    async def grant(self, ttl_s: int) -> Lease:
        """A new lease; etcd may make it longer than asked. Raises `EtcdError`."""
        answer = await self._ask("lease/grant", {"TTL": ttl_s}, WRITING_S)
        with _expected(answer):
            return Lease(str(answer["ID"]), float(answer["TTL"]))

    async def keep_alive(self, lease: Lease, skipped: int = 0) -> float:
        """The lease begins anew: its seconds from now on; 0: it has run out.

        So many members are left to the end. Raises `EtcdError`.
        """
        answer = await self._ask("lease/keepalive", {"ID": lease.id}, lease.ttl_s, skipped)
        with _expected(answer):
            return float(answer["result"].get("TTL", 0))

    async def revoke(self, lease: Lease) -> None:
        """Its keys are gone at once; nothing happens if it has run out. Raises `EtcdError`."""
        try:
            await self._ask("lease/revoke", {"ID": lease.id}, WRITING_S)
        except EtcdError as error:
            if "lease not found" not in str(error):
                raise

    def revoking(self, lease: Lease) -> dict[str, Any]:
        """For `hook_process.revoke`, which has no client."""
        first = self._first
        return {
            "urls": [*self._endpoints[first:], *self._endpoints[:first]],
            "id": lease.id,
            "token": self._token,
            "ca_file": self._files[0],
            "cert_file": self._files[1],
        }

    async def put(self, entry: Entry, lease: Lease) -> None:
        """Writes a key that is gone with the lease. Raises `EtcdError`."""
        body = {"key": _coded(entry.key), "value": _coded(entry.value), "lease": lease.id}
        await self._ask("kv/put", body, WRITING_S)

    async def entries(self, prefix: str) -> list[Entry]:
        """What is under `prefix`, the oldest first, as a majority of the members knows it.

        Raises `EtcdError`.
        """
        order = {"sort_order": "ASCEND", "sort_target": "CREATE"}
        answer = await self._ask("kv/range", _under(prefix) | order, self._quick_s)
        with _expected(answer):
            return [
                Entry(_decoded(found["key"]), _decoded(found.get("value", "")))
                for found in answer.get("kvs", ())
            ]

    async def changes(self, prefix: str) -> AsyncIterator[None]:
        """Something under `prefix` may have changed: once the watch stands, then at each change.

        The watch is of what comes, not of a revision, so that compaction cannot break it: who is
        told has to read `entries` anew. Raises `EtcdError` when it ends.
        """
        base = self._endpoints[self._first]
        question = {"create_request": _under(prefix)}
        try:
            async with self._post(base, "watch", question) as answer:
                if answer.status != OK:
                    raise EtcdError(_refusal(base, answer.status, await answer.text()))
                async for line in answer.content:
                    if b'"canceled":true' in line:
                        raise EtcdError(f"{base}: the watch was cancelled")
                    yield
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EtcdError(f"{base}: {_reason(error)}") from None
        raise EtcdError(f"{base}: the watch has ended")

    async def _ask(
        self, what: str, question: dict[str, Any], limit_s: float, skipped: int = 0
    ) -> Any:
        """The answer of the first member that has one, beginning with the one that had the last."""
        problems = {}
        for number in range(len(self._endpoints)):
            at = (self._first + skipped + number) % len(self._endpoints)
            try:
                answer = await self._ask_one(self._endpoints[at], what, question, limit_s)
            except _PassedOverError as error:
                problems[at] = str(error)
                continue
            self._first = at
            return answer
        raise EtcdError("; ".join(problems[at] for at in sorted(problems)))

    async def _ask_one(self, base: str, what: str, question: dict[str, Any], limit_s: float) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                if self._user and not self._token:
                    await self._log_in(base)
                status, text = await self._exchange(base, what, question)
                if self._user and any(sign in text for sign in _NO_TOKEN):
                    await self._log_in(base)
                    status, text = await self._exchange(base, what, question)
        except TimeoutError:
            raise _PassedOverError(f"{base} does not answer within {limit_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _PassedOverError(f"{base}: {_reason(error)}") from None
        return _content(base, status, text)

    async def _log_in(self, base: str) -> None:
        self._token = ""
        question = {"name": self._user, "password": self._password}
        answer = _content(base, *await self._exchange(base, "auth/authenticate", question))
        with _expected(answer):
            self._token = str(answer["token"])

    async def _exchange(self, base: str, what: str, question: dict[str, Any]) -> tuple[int, str]:
        async with self._post(base, what, question) as answer:
            return answer.status, await answer.text(errors="replace")

    def _post(self, base: str, what: str, question: dict[str, Any]) -> Any:
        assert self._session is not None  # noqa: S101  # it is open while anything is asked
        headers = {"Authorization": self._token} if self._token else {}
        return self._session.post(
            f"{base}/v3/{what}", json=question, headers=headers, allow_redirects=False
        )


class _PassedOverError(Exception):
    """This member cannot answer; another one may."""


@contextlib.contextmanager
def _expected(answer: Any) -> Iterator[None]:
    """Raises `EtcdError` where the block does not find in `answer` what it should have."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        raise EtcdError(f"not what etcd answers: {str(answer)[:100]}") from None


def _content(base: str, status: int, text: str) -> Any:
    """Raises `_PassedOverError` or `EtcdError` for what is no answer."""
    if status >= 500 or status in _PASSING:
        raise _PassedOverError(_refusal(base, status, text))
    if status != OK:
        raise EtcdError(_refusal(base, status, text))
    try:
        answer = json.loads(text)
        if not isinstance(answer, dict):
            raise ValueError
    except ValueError:
        raise _PassedOverError(f"{base} is no etcd: its answer is not JSON") from None
    return answer


def _refusal(base: str, status: int, text: str) -> str:
    try:
        answer = json.loads(text)
        said = answer.get("message") or answer["error"]
    except (ValueError, KeyError, AttributeError):
        return f"{base} answers {status}; is it etcd, with its JSON gateway on?"
    return f"{base}: {str(said).removeprefix('etcdserver: ')}"


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number and number > 0 else str(error.os_error)
    return str(error) or type(error).__name__


def _under(prefix: str) -> dict[str, str]:
    """The range of all keys that begin with `prefix`; it ends with a character below U+007F."""
    return {"key": _coded(prefix), "range_end": _coded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode("utf-8", "replace")


def _password(path: Path | None) -> str:
    """The first line of the file. Raises `UsageError`."""
    if path is None:
        return ""
    try:
        lines = read_small(path, "a file with a password").decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"gateway.etcd.password_file {path}: {reason}") from None
    if not lines or not lines[0]:
        raise UsageError(f"gateway.etcd.password_file {path}: its first line is no password")
    return lines[0]
