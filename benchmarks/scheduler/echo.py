"""The floor: servers that parse a request and send it back, by the same libraries as ssgmd's doors.

python -m benchmarks.scheduler.echo --ready-file FILE
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

from aiohttp import web


class EchoLines(asyncio.Protocol):
    """JSON lines: `{"id", …}` is answered by `{"id", "ok": {…}}`."""

    def __init__(self) -> None:
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        self._transport.write(b"".join(_answer(json.loads(line)) for line in lines))


def _answer(value: dict[str, Any]) -> bytes:
    return json.dumps({"id": value.pop("id"), "ok": value}).encode() + b"\n"


async def _echo(request: web.Request) -> web.Response:
    body = await request.read()
    return web.json_response(json.loads(body) if body else {})


async def serve(ready: Path) -> None:
    """Both doors on free ports, until killed."""
    app = web.Application()
    app.router.add_post("/v1/{op}", _echo)
    app.router.add_delete("/v1/leases/{lease}", _echo)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(EchoLines, "127.0.0.1", 0)
    http, lines = runner.addresses[0], server.sockets[0].getsockname()
    addresses = {"http": f"127.0.0.1:{http[1]}", "socket": f"127.0.0.1:{lines[1]}"}
    new = ready.with_suffix(".new")
    new.write_text(json.dumps({"pid": os.getpid(), **addresses}))
    new.replace(ready)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ready-file", type=Path, required=True)
    asyncio.run(serve(parser.parse_args().ready_file))
