"""Payloads through memory that both ends share, slot by slot, beside a local connection.

Each direction has its own ring of slots. The sender fills the next free slot and sends a byte on
the bell; the receiver copies the slot and sends a byte back. No offset crosses the wire, so none
can be forged: slots are used in order, and sizes follow from the frame's header. A malicious side
can change bytes while they are copied, but only those of its own payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import BufferLike

#: Of one slot, which stays in a core's cache between the two copies.
SLOT_BYTES = 1 << 19
_SLOTS = 4  #: of one direction: one being filled, one being emptied, two for the wake-up
SEGMENT_BYTES = 2 * _SLOTS * SLOT_BYTES
#: Smaller payloads are sent over the connection.
SHARED_BYTES_MIN = 1 << 18
#: The lane's command that requests the memory; its answer carries two descriptors.
SEGMENT_COMMAND = "segment.new"
_FILLED, _EMPTIED = 0x46, 0x45  # the bytes on the bell: one per slot
_RINGS = 64


class Bell(Protocol):
    """The part of a socket that signals slots."""

    def send(self, data: bytes, /) -> int: ...

    def recv(self, count: int, /) -> bytes: ...


class Segment:
    """One end of shared memory and its bell; for one thread at a time."""

    def __init__(self, memory: BufferLike, bell: Bell, *, first: bool) -> None:
        """`memory`: at least SEGMENT_BYTES, writable; `first`: this end sends in the first half."""
        view, half = memoryview(memory), _SLOTS * SLOT_BYTES
        ours, theirs = (0, half) if first else (half, 0)
        self._out, self._in = view[ours : ours + half], view[theirs : theirs + half]
        self._bell = bell
        self._free, self._filled = _SLOTS, 0  # slots of ours to fill, of theirs to empty
        self._next_out = self._next_in = 0  # number of the next slot
        self._expected = 0  # bytes of a frame that are still to come
        self._at = self._end = 0  # what is left of the slot that is being emptied

    def put(self, views: Sequence[memoryview]) -> None:
        """Send a payload. Raises WireError when the other end has gone."""
        slot, used = memoryview(b""), 0
        for view in views:
            at = 0
            while at < view.nbytes:
                if used == slot.nbytes:
                    slot, used = self._slot_to_fill(), 0
                count = min(slot.nbytes - used, view.nbytes - at)
                slot[used : used + count] = view[at : at + count]
                used, at = used + count, at + count
                if used == slot.nbytes:
                    self._ring(_FILLED)
        if used < slot.nbytes:
            self._ring(_FILLED)

    def expect(self, payload_bytes: int) -> None:
        """Expect a payload of this size, after the previous one was read to its end."""
        self._expected = payload_bytes

    def take(self, views: Sequence[memoryview]) -> None:
        """Fill the views in order with the expected payload. Raises WireError."""
        for view in views:
            done = 0
            while done < view.nbytes:
                count = min(self._at_hand(), view.nbytes - done)
                view[done : done + count] = self._in[self._at : self._at + count]
                done += count
                self._took(count)

    def discard(self, count: int) -> None:
        """Skip `count` expected bytes."""
        while count:
            part = min(self._at_hand(), count)
            self._took(part)
            count -= part

    def _slot_to_fill(self) -> memoryview:
        while not self._free:
            self._hear()
        self._free -= 1
        at = self._next_out * SLOT_BYTES
        self._next_out = (self._next_out + 1) % _SLOTS
        return self._out[at : at + SLOT_BYTES]

    def _at_hand(self) -> int:
        """The bytes left in the current slot; waits for the next one if there are none."""
        if self._at == self._end:
            if not self._expected:
                raise WireError("the payload is shorter than its views")
            while not self._filled:
                self._hear()
            self._filled -= 1
            self._at = self._next_in * SLOT_BYTES
            self._end = self._at + min(SLOT_BYTES, self._expected)
            self._next_in = (self._next_in + 1) % _SLOTS
        return self._end - self._at

    def _took(self, count: int) -> None:
        self._at += count
        self._expected -= count
        if self._at == self._end:
            self._ring(_EMPTIED)

    def _ring(self, what: int) -> None:
        self._bell.send(bytes((what,)))

    def _hear(self) -> None:
        rings = self._bell.recv(_RINGS)
        if not rings:
            raise WireError("the other end of the shared memory has gone")
        emptied = rings.count(_EMPTIED)
        self._free = min(_SLOTS, self._free + emptied)
        self._filled = min(_SLOTS, self._filled + len(rings) - emptied)
