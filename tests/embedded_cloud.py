"""An embedded cloud in a thread of the test's process: no process to start."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from local_cloud.server.application import Options, running


@dataclass(frozen=True)
class Answer:
    """What came back for one request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@dataclass(frozen=True)
class Address:
    """Where the cloud listens."""

    netloc: str

    @property
    def port(self) -> int:
        return int(self.netloc.rpartition(":")[2])

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request with exactly these headers, on a connection of its own."""
        given = dict(headers or {})
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if "Host" not in given:
                connection.putheader("Host", self.netloc)
            if "Content-Length" not in given:
                connection.putheader("Content-Length", str(len(body)))
            for name, value in given.items():
                connection.putheader(name, value.encode())
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())


@contextmanager
def embedded_cloud(options: Options) -> Iterator[Address]:
    """Serve until the block ends."""
    found: list[str] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        try:
            async with running(options) as context:
                found.append(urlsplit(context.endpoint).netloc)
                started.set()
                await asyncio.to_thread(stop.wait)
        finally:
            started.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(60)
        assert found, "it did not start"
        yield Address(found[0])
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def cloud_in(folder: Path, **options: object) -> Iterator[Address]:
    """The same over a fresh folder."""
    with embedded_cloud(Options(state=folder / "state", **options)) as address:  # type: ignore[arg-type]
        yield address
