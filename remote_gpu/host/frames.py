"""Frames on a non-blocking socket of the event loop, never reading a byte beyond the frame.

What follows on a lane is the worker's: it is read by another process, from the same socket.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import HEADER_BYTES, Limits, pack, parse_header, parse_meta


async def send_frame(stream: socket.socket, meta: Mapping[str, Any], wait_s: float) -> None:
    """Send one small frame. Raises OSError, TimeoutError."""
    async with asyncio.timeout(wait_s):  # wait_for would make a task of it
        await asyncio.get_running_loop().sock_sendall(stream, pack(meta))


async def receive_frame(stream: socket.socket, limits: Limits, wait_s: float) -> dict[str, Any]:
    """The next meta. Raises WireError (also at the end), OSError, TimeoutError."""
    async with asyncio.timeout(wait_s):
        return await _receive(stream, limits)


async def _receive(stream: socket.socket, limits: Limits) -> dict[str, Any]:
    header = parse_header(await _exactly(stream, HEADER_BYTES), limits)
    if header.payload_bytes:
        raise WireError("a payload where none belongs")
    return parse_meta(await _exactly(stream, header.meta_bytes))


async def _exactly(stream: socket.socket, count: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < count:
        part = await loop.sock_recv(stream, count - len(data))
        if not part:
            raise WireError("the connection ended")
        data += part
    return data
