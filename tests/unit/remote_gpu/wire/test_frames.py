"""Frames: round trips, and a typed error for other bytes, before any allocation."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.wire.channel import Channel
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import (
    HANDSHAKE,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SESSION,
    VERSION,
    BufferLike,
    FrameLimits,
    Meta,
    pack,
    parse_header,
    parse_meta,
    parse_sizes,
)


class Pipe:
    """A stream in memory, handing bytes out in the given portions; empty at its end."""

    def __init__(self, data: bytes = b"", portion: int = 1 << 20) -> None:
        self.data = bytearray(data)
        self.portion = portion

    def send(self, data: BufferLike, /) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Iterable[BufferLike], /) -> int:
        taken = b"".join(bytes(b) for b in buffers)[: self.portion]
        self.data += taken
        return len(taken)

    def recv_into(self, buffer: memoryview, nbytes: int = 0, /) -> int:
        part = self.data[: min(len(buffer), self.portion)]
        buffer[: len(part)] = part
        del self.data[: len(part)]
        return len(part)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(
    meta=st.dictionaries(st.text(max_size=8), json_values, max_size=5),
    payload=st.lists(st.binary(max_size=20_000), max_size=5),
    portion=st.integers(1, 30_000),
    call=st.integers(0, 2**32 - 1),
)
def test_a_frame_is_read_in_any_portions(
    meta: Meta, payload: list[bytes], portion: int, call: int
) -> None:
    pipe = Pipe(portion=portion)
    Channel(pipe, FrameLimits()).send(meta, payload, call=call)
    receiver = Channel(pipe, FrameLimits())
    frame = receiver.receive()
    assert frame is not None
    header, received = frame
    assert (received, header.call) == (meta, call)
    buffers = [bytearray(len(part)) for part in payload]
    receiver.receive_payload([memoryview(b) for b in buffers])
    assert [bytes(b) for b in buffers] == payload
    assert receiver.receive() is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_wire_error(data: bytes) -> None:
    channel = Channel(Pipe(data), FrameLimits(meta_bytes_max=100, payload_bytes_max=100))
    try:
        while (received := channel.receive()) is not None:
            channel.discard(received[0].payload_bytes)
    except WireError:
        pass


@given(st.binary(min_size=0, max_size=300))
def test_any_bytes_after_a_good_header_are_a_meta_or_a_wire_error(body: bytes) -> None:
    data = HEADER.pack(MAGIC, VERSION, 0, 1, len(body), 0) + body
    channel = Channel(Pipe(data), FrameLimits())
    try:
        received = channel.receive()
        assert received is not None
        assert isinstance(received[1], dict)
    except WireError:
        pass


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ((0x1234, VERSION, 0, 0, 2, 0), "magic"),
        ((MAGIC, VERSION + 1, 0, 0, 2, 0), "version"),
        ((MAGIC, VERSION, 0x80, 0, 2, 0), "flags"),
        ((MAGIC, VERSION, 0, 0, 0, 0), "meta"),
        ((MAGIC, VERSION, 0, 0, 4096, 0), "meta"),
        ((MAGIC, VERSION, 0, 0, 2**32 - 1, 0), "meta"),
        ((MAGIC, VERSION, 0, 0, 2, 1), "payload"),
        ((MAGIC, VERSION, 0, 0, 2, 2**64 - 1), "payload"),
    ],
)
def test_a_header_over_the_handshake_limits_is_refused_before_its_body(
    fields: tuple[int, ...], word: str
) -> None:
    with pytest.raises(WireError, match=word):
        parse_header(HEADER.pack(*fields), HANDSHAKE)


def test_the_largest_frame_before_the_proof_is_4_kib() -> None:
    assert HEADER_BYTES + HANDSHAKE.meta_bytes_max == 4096


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        "{",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": [-1e999]}',
        "[" * 100_000,
        '{"a": ' * 5000,
    ],
)
def test_a_meta_is_one_object_of_finite_numbers(text: str) -> None:
    with pytest.raises(WireError):
        parse_meta(text.encode())


def test_a_meta_that_is_not_utf8() -> None:
    with pytest.raises(WireError):
        parse_meta(b'{"a": "\xff"}')


@pytest.mark.parametrize(
    "sizes", [[1], [-1, 5], [True, 3], [1.0, 3], "4", [5], [2**70], [0] * 65, {"a": 4}]
)
def test_sizes_must_add_up_to_the_payload(sizes: object) -> None:
    with pytest.raises(WireError):
        parse_sizes({"out": sizes}, "out", 4, FrameLimits())


def test_a_connection_that_ends_inside_a_frame() -> None:
    whole = pack({"op": "noop"})
    for cut in range(1, len(whole)):
        with pytest.raises(WireError, match="ended inside"):
            Channel(Pipe(whole[:cut]), FrameLimits()).receive()


def test_nan_is_never_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        pack({"x": float("nan")})
    assert json.loads(pack({"x": 1.5})[HEADER_BYTES:]) == {"x": 1.5}


def buffered(channel: Channel) -> bool:
    """Read anew: it changes between two lines."""
    return channel.buffered


def test_a_frame_read_ahead_is_reported_as_buffered() -> None:
    near, far = socket.socketpair()
    with near, far:
        Channel(far, SESSION).send({"beat": {}})
        Channel(far, SESSION).send({"give_back": {}})
        channel = Channel(near, SESSION)
        assert not buffered(channel)
        first = channel.receive()
        assert first is not None
        assert "beat" in first[1]
        assert buffered(channel)
        second = channel.receive()
        assert second is not None
        assert "give_back" in second[1]
        assert not buffered(channel)
