"""Shared memory between two ends: any sizes, and misbehaving ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_gpu.wire import segment as module
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import NO_REPLY, SHARED, FrameLimits, pack
from remote_gpu.wire.segment import SEGMENT_BYTES, SHARED_BYTES_MIN, SLOT_BYTES, Segment


@pytest.fixture(scope="module")
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Two channels with one segment between them."""
    memory, (one, two), (left, right) = (
        bytearray(SEGMENT_BYTES),
        socket.socketpair(),
        socket.socketpair(),
    )
    with one, two, left, right:
        channels = Channel(left, FrameLimits()), Channel(right, FrameLimits())
        channels[0].segment = Segment(memory, one, first=True)
        channels[1].segment = Segment(memory, two, first=False)
        yield channels


SIZES = st.sampled_from([0, 1, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, 3 * SLOT_BYTES + 7])


@settings(max_examples=25)
@given(st.lists(st.lists(SIZES, max_size=3), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_payloads_of_any_sizes_arrive_in_order_both_ways(
    ends: tuple[Channel, Channel], frames: list[list[int]], back: bool, thrown: bool
) -> None:
    sender, receiver = reversed(ends) if back else ends
    sent = [
        [bytes([i + j + 1]) * size for j, size in enumerate(one)] for i, one in enumerate(frames)
    ]
    got: list[list[bytes]] = []

    def send() -> None:
        for one in sent:
            sender.send({"in": [len(part) for part in one]}, one, flags=NO_REPLY)

    thread = threading.Thread(target=send)
    thread.start()
    for number, _ in enumerate(sent):
        received = receiver.receive()
        assert received is not None
        header, meta = received
        assert bool(header.flags & SHARED) == (header.payload_bytes >= SHARED_BYTES_MIN)
        if thrown and number == 0:
            receiver.discard(header.payload_bytes)
            got.append(sent[0])
            continue
        views = [memoryview(bytearray(size)) for size in meta["in"]]
        receiver.receive_payload(views)
        got.append([bytes(view) for view in views])
    thread.join()
    assert got == sent


def test_a_shared_payload_without_shared_memory_is_a_wire_error() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(pack({"op": "x"}, flags=SHARED, payload_bytes=10))
        with pytest.raises(WireError, match="without a shared segment"):
            Channel(right, FrameLimits()).receive()


def test_a_closed_end_wakes_the_other_and_false_sizes_reach_no_other_memory() -> None:
    memory, (one, two) = bytearray(SEGMENT_BYTES), socket.socketpair()
    with two:
        with one:
            segment = Segment(memory, two, first=False)
            one.sendall(
                b"FFFFEEEE\x00\xff" * 20
            )  # more rings than there are slots, and foreign ones
            segment.expect(10)
            segment.take([memoryview(bytearray(10))])
            with pytest.raises(WireError, match="shorter than its views"):
                segment.take([memoryview(bytearray(1))])
            segment.put([memoryview(bytes(2 * SLOT_BYTES))])
        assert segment._free <= module._SLOTS
        with pytest.raises((WireError, OSError)):
            segment.put([memoryview(bytes(64 * SLOT_BYTES))])
