"""Forwarded connections that can be cut: bytes stop, connections stay open, as in a network."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

Address = tuple[str, int] | Path


class Link:
    """Forwards one address to another, both of TCP or both Unix sockets."""

    def __init__(self, at: Address, to: Address) -> None:
        self._at = at
        self._to = to
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Link:
        if isinstance(self._at, Path):
            self._server = await asyncio.start_unix_server(self._accept, self._at)
        else:
            self._server = await asyncio.start_server(self._accept, *self._at)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._whole.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the closed connections end

    def cut(self) -> None:
        """Hold every byte back from now on; new connections are accepted and lead nowhere."""
        self._whole.clear()

    def restore(self) -> None:
        """Deliver what was held back."""
        self._whole.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._whole.wait()
            await self._connected(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._to, Path):
            far_reader, far_writer = await asyncio.open_unix_connection(self._to)
        else:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
        ways = (self._pump(reader, far_writer), self._pump(far_reader, writer))
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
