"""One ssgmd inside the test's process, its two endpoints, and clients of them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from corekit.budget import Budget
from gpu_scheduler.daemon.app import RunningDaemon, running_daemon
from gpu_scheduler.daemon.settings import DaemonSettings

#: Production's, but for hosts: those of these tests say hello and nothing else, and stay UP.
BUDGET = replace(Budget(), host_stale_s=600.0, host_lost_s=1200.0)


@dataclass(frozen=True)
class Answer:
    """An answer of the HTTP endpoint."""

    status: int
    value: Any
    headers: Any


@dataclass(frozen=True)
class Endpoints:
    """A running daemon."""

    daemon: RunningDaemon
    http: aiohttp.ClientSession
    state: Path
    tls: ssl.SSLContext | None

    async def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **options: Any
    ) -> Answer:
        """One HTTP request; `body` is sent as JSON, or as it is when it is bytes."""
        headers = {**options.pop("headers", {})}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        text = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        data = None if text is None else io.BytesIO(text)
        scheme = "http" if self.tls is None else "https"
        url = f"{scheme}://{self.daemon.http}{path}"
        async with self.http.request(
            method, url, data=data, headers=headers, ssl=self.tls or False, **options
        ) as answer:
            told = await answer.text()
            is_json = answer.headers["Content-Type"].startswith("application/json")
            return Answer(answer.status, json.loads(told) if is_json else told, answer.headers)

    @contextlib.asynccontextmanager
    async def peer(self) -> AsyncIterator[Peer]:
        """A raw connection to the socket endpoint."""
        host, _, port = self.daemon.socket.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=self.tls)
        try:
            yield Peer(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()


@dataclass(frozen=True)
class Peer:
    """One end of a raw connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def line(self, line: bytes) -> Any:
        """Send a line; the next line that comes, None at the end of the connection."""
        self.writer.write(line + b"\n")
        return await self.next()

    async def next(self) -> Any:
        async with asyncio.timeout(60):
            line = await self.reader.readline()
        return json.loads(line) if line else None

    async def ask(self, **fields: Any) -> Any:
        return await self.line(json.dumps({"id": 1, **fields}).encode())

    async def hello(self, **fields: Any) -> Any:
        known = {"role": "requester", "session": "s", "version": 1, **fields}
        return await self.ask(op="hello", **known)


@contextlib.asynccontextmanager
async def serving(state: Path, **settings: Any) -> AsyncIterator[Endpoints]:
    """A daemon on `state` for the length of the block."""
    told = DaemonSettings(state=state, budget=settings.pop("budget", BUDGET), **settings)
    tls = None
    if told.certificate is not None:
        tls = ssl.create_default_context(cafile=str(state.parent / "ca.pem"))
    # A connection that is kept for the next request would be a task that outlives its test.
    once = aiohttp.TCPConnector(force_close=True)
    async with running_daemon(told) as daemon, aiohttp.ClientSession(connector=once) as http:
        yield Endpoints(daemon, http, state, tls)
