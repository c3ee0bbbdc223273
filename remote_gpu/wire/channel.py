"""Frames over one blocking, connected stream: scatter/gather out, straight into place in.

Needs only the methods of `Stream`, which a `socket.socket` has; imports no socket itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import (
    HEADER_BYTES,
    SHARED,
    BufferLike,
    Header,
    Limits,
    Meta,
    flat_views,
    pack,
    parse_header,
    parse_meta,
)
from remote_gpu.wire.segment import SHARED_BYTES_MIN, Segment

#: Header, meta and the beginning of a small payload arrive in one call to the kernel.
_READ_AHEAD_BYTES = 8192
_DISCARD_BYTES = 1 << 16
#: From here on a frame's head goes ahead of its payload: the peer wakes up, reads it and looks for
#: a place while the kernel still copies. Below, a second packet costs more than that.
_HEAD_FIRST_BYTES = 1 << 15
#: Small metas come again and again, byte by byte the same: `{"op":"noop"}`, `{"ran":"none"}`.
_KNOWN_BYTES_MAX = 256
_KNOWN_MAX = 64


class Stream(Protocol):
    """The part of a socket that a channel uses."""

    def send(self, data: BufferLike, /) -> int: ...

    def sendmsg(self, buffers: Iterable[BufferLike], /) -> int: ...

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int: ...


class Channel:
    """One side of a connection; not thread-safe: one sender and one receiver at a time."""

    def __init__(self, stream: Stream, limits: Limits, *, only_read: bool = False) -> None:
        """`only_read`: what a meta holds is never changed, nor given to who might change it."""
        self._stream = stream
        self._only_read = only_read
        self.limits = limits
        self.segment: Segment | None = None  #: large payloads go through it, once there is one
        self._source: Segment | None = None  # of the payload that is to be taken
        self._ahead = memoryview(bytearray(_READ_AHEAD_BYTES))
        self._known: dict[bytes, Meta] = {}
        self._from = 0  # what was read and not yet taken is self._ahead[self._from:self._to]
        self._to = 0

    @property
    def buffered(self) -> bool:
        """Something was read and not yet taken: a select on the socket would not tell of it."""
        return self._from < self._to

    def send(
        self,
        meta: Mapping[str, object],
        buffers: Sequence[BufferLike] = (),
        *,
        call: int = 0,
        flags: int = 0,
    ) -> None:
        """Send one frame whole. Raises OSError when the connection is gone."""
        if not buffers:
            self.send_bytes(pack(meta, call=call, flags=flags))
            return
        payload, size = flat_views(buffers), 0
        for view in payload:
            size += view.nbytes
        if self.segment is not None and size >= SHARED_BYTES_MIN:
            self.send_bytes(pack(meta, call=call, flags=flags | SHARED, payload_bytes=size))
            self.segment.put(payload)
            return
        head = pack(meta, call=call, flags=flags, payload_bytes=size)
        if size < _HEAD_FIRST_BYTES:
            payload.insert(0, memoryview(head))
        else:
            self.send_bytes(head)
        self._send_all(payload)

    def send_bytes(self, frame: bytes | bytearray) -> None:
        """Send a frame that is packed already; small ones go in one call to the kernel."""
        sent = self._stream.send(frame)
        if sent < len(frame):
            self._send_all([memoryview(frame)[sent:]])

    def receive(self) -> tuple[Header, Meta] | None:
        """The next header and meta; None when the peer closed between frames.

        The payload, if any, must be taken next by `receive_payload` or `discard`; the meta is only
        to be read. Raises WireError for bytes that break the protocol, OSError when the connection
        is gone.
        """
        if self._to - self._from < HEADER_BYTES and not self._fill(HEADER_BYTES, eof_allowed=True):
            return None
        ahead, start = self._ahead, self._from
        header = parse_header(ahead, self.limits, start)
        _, flags, size, payload_bytes = header
        start += HEADER_BYTES
        end = start + size
        if size <= _KNOWN_BYTES_MAX and end <= self._to:
            self._from = end
            body = ahead[start:end].tobytes()
            meta = self._known.get(body) or self._learn(body)
        else:
            self._from = start
            meta = parse_meta(self._take(size))
        self._source = None
        if flags & SHARED:
            if self.segment is None:
                raise WireError("a payload in shared memory, and there is none")
            self._source = self.segment
            self._source.expect(payload_bytes)
        return header, meta

    def _learn(self, body: bytes) -> Meta:
        meta = parse_meta(body)
        if len(self._known) < _KNOWN_MAX and (self._only_read or _is_flat(meta)):
            self._known[body] = meta
        return meta

    def receive_payload(self, views: Sequence[memoryview]) -> None:
        """Fill the views in order, straight from the kernel."""
        if self._source is not None:
            self._source.take(views)
            return
        for view in views:
            self._receive_into(view)

    def take_rest(self) -> bytes:
        """What was read beyond the last frame, where the stream goes on as something else."""
        rest = self._ahead[self._from : self._to].tobytes()
        self._from = self._to
        return rest

    def discard(self, count: int) -> None:
        """Throw away `count` payload bytes, so that the next frame can be read."""
        if self._source is not None:
            self._source.discard(count)
            return
        scratch = memoryview(bytearray(min(count, _DISCARD_BYTES)))
        while count:
            part = scratch[: min(count, len(scratch))]
            self._receive_into(part)
            count -= len(part)

    def _send_all(self, views: list[memoryview]) -> None:
        while views:
            sent = self._stream.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _fill(self, count: int, *, eof_allowed: bool = False) -> bool:
        """Have at least `count` (≤ the read-ahead) bytes at hand, which are not yet."""
        rest = self._to - self._from
        if rest:
            self._ahead[:rest] = self._ahead[self._from : self._to].tobytes()
        self._from, self._to = 0, rest
        while self._to < count:
            read = self._stream.recv_into(self._ahead[self._to :] if self._to else self._ahead)
            if read == 0:
                if eof_allowed and self._to == 0:
                    return False
                raise WireError("the connection ended inside a frame")
            self._to += read
        return True

    def _take(self, count: int) -> bytes | bytearray:
        if count <= _READ_AHEAD_BYTES:
            if self._to - self._from < count:
                self._fill(count)
            self._from += count
            return self._ahead[self._from - count : self._from].tobytes()
        body = bytearray(count)
        self._receive_into(memoryview(body))
        return body

    def _receive_into(self, view: memoryview) -> None:
        ahead = min(self._to - self._from, len(view))
        if ahead:
            view[:ahead] = self._ahead[self._from : self._from + ahead]
            self._from += ahead
        done = ahead
        while done < len(view):
            read = self._stream.recv_into(view[done:])
            if read == 0:
                raise WireError("the connection ended inside a frame")
            done += read


def _is_flat(meta: Mapping[str, object]) -> bool:
    """Nothing in it can be changed but itself."""
    return all(type(value) is str for value in meta.values())
