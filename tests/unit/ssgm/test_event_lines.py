"""The events of an HTTP endpoint as its clients read them."""

from __future__ import annotations

import asyncio

import pytest

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.events import endpoint_events

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"


async def read(http: str, found: list[str]) -> None:
    async for fields in endpoint_events(http, Access(), 10.0):
        found.append(str(fields["event"]))  # noqa: PERF401 - also those before an error


@pytest.mark.asyncio
async def test_a_line_that_is_cut_off_is_an_endpoint_that_is_not_there() -> None:
    """A proxy between both that stops, or ssgmd that is killed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b'{"event": "beat", "position": 7}\n{"event": "be')
        writer.close()
        await writer.wait_closed()

    found = list[str]()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AppError, match="no events from the HTTP endpoint") as caught:
            await read(f"127.0.0.1:{port}", found)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert found == ["beat"]
