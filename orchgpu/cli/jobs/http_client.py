"""The HTTP API of a console, as `orchgpu invoke` uses it. Raises AppError only.

A request is repeated while the server does not answer: it has an idempotency key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from corekit.aio.backoff import Backoff
from corekit.aio.event_stream import LAST_EVENT_ID
from corekit.decode import decode_json_known, parse_json
from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.addresses import is_loopback
from corekit.values import Value
from orchgpu.local.home import default_home
from orchgpu.web.api.model import Job, JobFile

URL_VARIABLE = "ORCHGPU_URL"
#: Without an event for so long a stream is lost; the server sends a comment each second.
SILENCE_S = 30.0
#: Repetitions of a request without an answer.
TRIES = 5
#: Requests for the events of a job of ours, in a row, that a server may not know: another one took
#: it, and knows it alone until an orchestrator receives it.
UNKNOWN_TRIES = 20
_LINE_BYTES_MAX = 2**20
_PIECE_BYTES = 256 * 1024
_LOST = (aiohttp.ClientError, TimeoutError, OSError)


class Event(Value):
    """One event of a job."""

    name: str  #: state, line, reset, end or error
    data: dict[str, Any]


def console_url(given: str | None) -> str:
    """The console to ask: the option, the variable, the local system's. Raises UNAVAILABLE."""
    found = given or os.environ.get(URL_VARIABLE)
    if not found:
        system = default_home().read_system()
        found = system.console if system is not None else ""
    if not found:
        text = "no console is known: start a local system with `orchgpu up`, or give --url or "
        raise AppError(ErrorCode.UNAVAILABLE, f"{text}{URL_VARIABLE}")
    if urlsplit(found).scheme not in ("http", "https"):
        raise invalid(f"--url {found!r} is not one: write https://HOST")
    return found.rstrip("/")


class HttpClient:
    """`async with connected(url, key) as client: job = await client.submit("f", file, "key")`."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def submit(
        self,
        function: str,
        file: Path,
        name: str,
        idempotency_key: str,
        parameters: Sequence[str] = (),
    ) -> Job:
        """Store a file as an input; repeated with the same key it is the same job.

        `parameters`: each `NAME=VALUE`.
        """
        path = f"/v1/functions/{quote(function, safe='')}/jobs"
        headers = {"Idempotency-Key": idempotency_key, "Content-Type": "application/octet-stream"}
        asked = [("name", name), *(("set", one) for one in parameters)]
        sent: dict[str, Any] = {"params": asked, "headers": headers}
        backoff = Backoff(0.2, 5.0)
        for left in range(TRIES, 0, -1):
            try:
                with file.open("rb") as body:
                    async with self._asked("POST", path, data=body, **sent) as answer:
                        return _job(await answer.read())
            except AppError as error:
                if not error.retryable or left == 1:
                    raise
                await asyncio.sleep(float(error.details.get("retry_in_s", backoff.next_s())))
        raise AssertionError("the last try returns or raises")

    async def job(self, job: str) -> Job:
        async with self._asked("GET", f"/v1/jobs/{job}") as answer:
            return _job(await answer.read())

    async def events(self, job: str) -> AsyncGenerator[Event, None]:
        """The events of a job that this client submitted until its end, across disconnects."""
        last, backoff, unknown = "", Backoff(0.2, 5.0), 0
        while True:
            headers, has_failed = {LAST_EVENT_ID: last} if last else {}, True
            try:
                async with self._asked("GET", f"/v1/jobs/{job}/events", headers=headers) as answer:
                    unknown = 0
                    async for event, id_ in _events(answer):
                        last, has_failed = id_ or last, event.name == "error"
                        yield event
                        if event.name == "end":
                            return
                    if answer.status == 204:
                        return
            except AppError as error:  # else it continues after the last event
                is_unknown = error.code is ErrorCode.NOT_FOUND
                unknown += is_unknown
                if not error.retryable and not (is_unknown and unknown < UNKNOWN_TRIES):
                    raise
            if not has_failed:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def content(self, file: JobFile) -> AsyncIterator[bytes]:
        """The content of an output, in pieces."""
        async with self._asked("GET", file.link) as answer:
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                yield piece

    async def call(self, function: str, content: bytes, name: str) -> AsyncIterator[bytes]:
        """The answer of an endpoint to one call, in pieces as they come; never repeated."""
        path = f"/v1/functions/{quote(function, safe='')}/calls"
        headers = {"Content-Type": "application/octet-stream"}
        # a call answers when it is ready: its server ends what takes too long
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S)
        sent: dict[str, Any] = {"params": {"name": name} if name else {}, "headers": headers}
        async with self._asked("POST", path, data=content, timeout=timeout, **sent) as answer:
            async for piece in answer.content.iter_any():
                yield piece

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of one request. Raises the server's error, or UNAVAILABLE without one."""
        try:
            answer = await self._http.request(method, self._url + path, **options)
        except _LOST as error:
            text = f"{self._url} does not answer: {error or type(error).__name__}"
            raise AppError(ErrorCode.UNAVAILABLE, text) from None
        async with answer:
            if answer.status >= 400:
                raise await _refusal(answer)
            try:
                yield answer
            except aiohttp.ClientError as error:
                text = f"the answer of {self._url} broke off: {error}"
                raise AppError(ErrorCode.UNAVAILABLE, text) from None


@asynccontextmanager
async def connected(url: str, key: str | None) -> AsyncIterator[HttpClient]:
    """A client with a key of the scheduler. Raises INVALID where the key would be readable."""
    headers: Mapping[str, str] = {}
    if key is not None:
        at = urlsplit(url)
        if at.scheme != "https" and not is_loopback(at.hostname or ""):
            raise invalid(f"the key would cross the network readable: use https, not {url}")
        headers = {"Authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, read_bufsize=_LINE_BYTES_MAX
    ) as http:
        yield HttpClient(http, url)


def _job(body: bytes) -> Job:
    return decode_json_known(Job, body, "the answer")[0]


async def _refusal(answer: aiohttp.ClientResponse) -> AppError:
    try:
        found = parse_json(await answer.read())
        error = found["error"] if isinstance(found, dict) else None
        return AppError.from_json(error)  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, AttributeError, *_LOST):
        code = ErrorCode.UNAVAILABLE if answer.status >= 500 else ErrorCode.INVALID
        return AppError(code, f"{answer.url} answered {answer.status} {answer.reason}")


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[Event, str]]:
    """Each event with its id, as the standard of server-sent events has them."""
    fields: dict[str, str] = {}
    async for raw in answer.content:
        name, _, value = raw.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
            continue
        if "data" in fields:
            data = parse_json(fields["data"].encode())
            found = data if isinstance(data, dict) else {}
            yield Event(name=fields.get("event", "message"), data=found), fields.get("id", "")
        fields = {}
