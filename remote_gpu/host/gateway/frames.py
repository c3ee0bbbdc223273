"""Frames on a non-blocking socket of the event loop, without reading beyond the frame.

The next bytes of a lane belong to the worker, another process that reads the same socket.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping

from remote_gpu.client.transport.tls import TlsMachine
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import HEADER_BYTES, FrameLimits, pack, parse_header, parse_meta

_TLS_READ_BYTES = 1 << 14  #: one record; frames of sessions are far smaller


class Peer:
    """One connection as frames: plain, or in TLS after `secure`."""

    def __init__(self, stream: socket.socket) -> None:
        self.socket = stream
        self.machine: TlsMachine | None = None

    async def send(self, meta: Mapping[str, object], wait_s: float) -> None:
        """Send one small frame. Raises OSError, TimeoutError."""
        async with asyncio.timeout(wait_s):  # wait_for would make a task
            await asyncio.get_running_loop().sock_sendall(self.socket, self._sealed(meta))

    def send_now(self, meta: Mapping[str, object]) -> None:
        """Send one small frame, or none if the kernel's buffer is full. Raises OSError.

        Never waits, not even on a socket that a worker with a copy of it has made blocking.
        """
        self.socket.send(self._sealed(meta), socket.MSG_DONTWAIT)

    async def receive(self, limits: FrameLimits, wait_s: float | None) -> dict[str, object]:
        """The meta of the next frame; `wait_s`: None = ever.

        Raises WireError (also at the end), OSError, TimeoutError.
        """
        async with asyncio.timeout(wait_s):
            header = parse_header(await self._exactly(HEADER_BYTES), limits)
            if header.payload_bytes:
                raise WireError("unexpected payload")
            return parse_meta(await self._exactly(header.meta_bytes))

    async def secure(self, context: ssl.SSLContext, wait_s: float) -> bytes:
        """Do the server's side of the TLS handshake; returns the connection's binding.

        Raises WireError when it fails, OSError, TimeoutError.
        """
        loop, machine = asyncio.get_running_loop(), TlsMachine(context, server=True)
        async with asyncio.timeout(wait_s):
            while not machine.handshake():
                await loop.sock_sendall(self.socket, machine.take())
                machine.give(await loop.sock_recv(self.socket, _TLS_READ_BYTES))
            await loop.sock_sendall(self.socket, machine.take())
        self.machine = machine
        return machine.binding

    def _sealed(self, meta: Mapping[str, object]) -> bytes:
        frame = pack(meta)
        return frame if self.machine is None else self.machine.encrypt(memoryview(frame))

    async def _exactly(self, count: int) -> bytes:
        loop, data = asyncio.get_running_loop(), b""
        while len(data) < count:
            missing = count - len(data)
            part = (
                await loop.sock_recv(self.socket, missing)
                if self.machine is None
                else await self._decrypted(self.machine, missing)
            )
            if not part:
                raise WireError("the connection ended")
            data += part
        return data

    async def _decrypted(self, machine: TlsMachine, count: int) -> bytes:
        view = memoryview(bytearray(count))
        while (done := machine.decrypt(view)) is None:
            loop = asyncio.get_running_loop()
            machine.give(await loop.sock_recv(self.socket, _TLS_READ_BYTES))
        return view[:done].tobytes()
