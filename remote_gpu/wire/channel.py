"""Frames over a blocking stream: sent by scatter/gather, received straight into place.

Needs only the methods of `Stream`, which a `socket.socket` has; imports no socket module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import (
    HEADER_BYTES,
    SHARED,
    BufferLike,
    FrameLimits,
    Header,
    Meta,
    flat_views,
    pack,
    parse_header,
    parse_meta,
)
from remote_gpu.wire.segment import SHARED_BYTES_MIN, Segment

#: Header, meta and a small payload arrive in one system call.
_READ_AHEAD_BYTES = 8192
_DISCARD_BYTES = 1 << 16
#: From this payload size on a frame's head is sent ahead: the peer wakes up, reads it and finds the
#: destination while the kernel still copies. Below, a second packet costs more than that saves.
_HEAD_FIRST_BYTES = 1 << 15
#: Of cached metas: small ones recur byte by byte, such as `{"op":"noop"}` and `{"ran":"none"}`.
_KNOWN_BYTES_MAX = 256
_KNOWN_MAX = 64


class Stream(Protocol):
    """The part of a socket that a channel uses."""

    def send(self, data: BufferLike, /) -> int: ...

    def sendmsg(self, buffers: Iterable[BufferLike], /) -> int: ...

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int: ...


class Channel:
    """One side of a connection; not thread-safe: one sender and one receiver at a time."""

    def __init__(self, stream: Stream, limits: FrameLimits, *, only_read: bool = False) -> None:
        """`only_read`: the caller does not change metas, so nested ones may be cached too."""
        self._stream = stream
        self._only_read = only_read
        self.limits = limits
        self.segment: Segment | None = None  #: for large payloads, if set
        self._source: Segment | None = None  # of the pending payload; None: the stream
        self._ahead = memoryview(bytearray(_READ_AHEAD_BYTES))
        self._known: dict[bytes, Meta] = {}
        self._from = 0  # unread bytes are self._ahead[self._from:self._to]
        self._to = 0

    @property
    def buffered(self) -> bool:
        """Whether bytes were read ahead, which a select on the socket does not show."""
        return self._from < self._to

    def send(
        self,
        meta: Mapping[str, object],
        buffers: Sequence[BufferLike] = (),
        *,
        call: int = 0,
        flags: int = 0,
    ) -> None:
        """Send one frame. Raises OSError when the connection has ended."""
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
        sent = self._stream.send(frame)
        if sent < len(frame):
            self._send_all([memoryview(frame)[sent:]])

    def receive(self) -> tuple[Header, Meta] | None:
        """The next header and meta; None when the peer closed between frames.

        The payload, if any, must be read next by `receive_payload` or `discard`; the meta must not
        be changed. Raises WireError for a violation of the protocol, OSError when the connection
        has ended.
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
                raise WireError("a payload in shared memory without a shared segment")
            self._source = self.segment
            self._source.expect(payload_bytes)
        return header, meta

    def _learn(self, body: bytes) -> Meta:
        meta = parse_meta(body)
        if len(self._known) < _KNOWN_MAX and (self._only_read or _is_flat(meta)):
            self._known[body] = meta
        return meta

    def receive_payload(self, views: Sequence[memoryview]) -> None:
        """Fill the views in order with the payload."""
        if self._source is not None:
            self._source.take(views)
            return
        for view in views:
            self._receive_into(view)

    def take_rest(self) -> bytes:
        """The bytes read beyond the last frame, when the stream continues without frames."""
        rest = self._ahead[self._from : self._to].tobytes()
        self._from = self._to
        return rest

    def discard(self, count: int) -> None:
        """Skip `count` payload bytes."""
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
    return all(type(value) is str for value in meta.values())
