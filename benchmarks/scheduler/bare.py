"""The floor of ssgmd in Python: a server that parses a line, appends it with fdatasync, answers it.

It decides nothing. `take` waits for the one slot and `give` hands it to the next that waits; `note`
is also sent to all that asked to `watch`. What comes in one turn of the loop is one sync, and only
that is written down which ssgmd journals too.

python -m benchmarks.scheduler.bare --ready-file FILE
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corekit.aio.process import run_program, write_ready

RESERVED_BYTES = 2**26
#: Bytes of an entry of ssgmd's journal, and of a push of a record.
ENTRY = b"x" * 1024


class Slot:
    """One slot, those that wait for it, and the file of what happened."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._fd, 0, RESERVED_BYTES)
        self._end = 0
        self._loop = asyncio.get_running_loop()
        self._unsynced: list[Callable[[], None]] = []  # answers that wait for the sync
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_free = True
        self.watchers: list[asyncio.Transport] = []

    def take(self, answer: Callable[[], None]) -> None:
        self._waiting.append(answer)
        self._next()

    def give(self, answer: Callable[[], None]) -> None:
        self._is_free = True
        self._append(answer)
        self._next()

    def note(self, answer: Callable[[], None]) -> None:
        self._append(answer)

    def _next(self) -> None:
        if self._is_free and self._waiting:
            self._is_free = False
            self._append(self._waiting.popleft())

    def _append(self, answer: Callable[[], None]) -> None:
        if not self._unsynced:
            self._loop.call_soon(self._sync)
        self._unsynced.append(answer)

    def _sync(self) -> None:
        answers, self._unsynced = self._unsynced, []
        self._end = (self._end + len(ENTRY)) % RESERVED_BYTES
        os.pwrite(self._fd, ENTRY, self._end)
        os.fdatasync(self._fd)
        for answer in answers:
            answer()


class BareLines(asyncio.Protocol):
    """JSON lines: `{"id", "op"}` is answered by `{"id", "ok": {}}`."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport  # uvloop has its own class

    def data_received(self, data: bytes) -> None:
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        for line in lines:
            value = json.loads(line)
            self._handle(value["op"], value["id"])

    def connection_lost(self, _: Exception | None) -> None:
        if self._transport in self._slot.watchers:
            self._slot.watchers.remove(self._transport)

    def _handle(self, op: str, id_: int) -> None:
        def answer() -> None:
            self._transport.write(b'{"id":%d,"ok":{}}\n' % id_)
            for watcher in self._slot.watchers if op == "note" else ():
                watcher.write(b'{"push":"%s"}\n' % ENTRY)

        if op == "watch":
            self._slot.watchers.append(self._transport)
            answer()
        else:
            handle = {"take": self._slot.take, "give": self._slot.give, "note": self._slot.note}
            handle[op](answer)


async def serve(ready: Path) -> None:
    """Until killed."""
    slot = Slot(ready.with_suffix(".bare"))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BareLines(slot), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    write_ready(ready, {"socket": f"{host}:{port}"})
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ready-file", type=Path, required=True)
    run_program("bare", serve(parser.parse_args().ready_file), fast=True)
