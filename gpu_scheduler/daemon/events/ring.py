"""Ring: the newest changes of this run, for all readers, also for those that return after a gap."""

from __future__ import annotations

from corekit.decode import encode_json
from corekit.values import Value
from gpu_scheduler.protocol import watch as words

#: The most changes: 1,000 jobs that change twenty times.
EVENTS_MAX = 20_000
#: The most bytes of all of them.
BYTES_MAX = 32 * 2**20


class RingEvent(Value):
    """One change, with the JSON of its fields as a reader without redaction gets it."""

    seq: int
    at_s: float
    event: words.WatchEvent
    fields: bytes


class Ring:
    """Changes by number, without a hole. Memory is bounded by number and bytes of the changes."""

    def __init__(self, epoch: int, run: str) -> None:
        self._epoch = epoch
        self._run = run
        self._events: dict[int, RingEvent] = {}
        self._bytes = 0
        self._last = 0
        self._lost = 0  # the newest change that is not in the ring

    @property
    def last(self) -> int:
        """The number of the newest change; 0 before the first."""
        return self._last

    def append(self, event: words.WatchEvent, at_s: float) -> None:
        """Add a change; the oldest ones make room for it."""
        self._last += 1
        one = RingEvent(seq=self._last, at_s=at_s, event=event, fields=encode_json(event))
        self._events[one.seq] = one
        self._bytes += len(one.fields)
        while len(self._events) > EVENTS_MAX or self._bytes > BYTES_MAX:
            oldest = self._events.pop(self._lost + 1)
            self._bytes -= len(oldest.fields)
            self._lost += 1

    def next_after(self, seq: int) -> RingEvent | None:
        """The change after this one; None: there is none yet, or it is lost."""
        return self._events.get(seq + 1)

    def lost_after(self, seq: int) -> bool:
        """True when a change after this one is no longer in the ring."""
        return seq < self._lost

    def interrupt(self) -> None:
        """Empty the ring, because changes are not collected for a while: a hole begins here."""
        self._events.clear()
        self._bytes = 0
        self._last += 1
        self._lost = self._last

    def position(self, seq: int) -> words.Position:
        """The position after this change."""
        return words.Position(epoch=self._epoch, run=self._run, seq=seq)

    def resumable(self, text: str) -> words.Position | str:
        """The position of a text; when no stream can continue there, the reason."""
        position = words.position_of(text)
        if position is None:
            return f"{text!r:.80} is not a position of this stream"
        if (position.epoch, position.run) != (self._epoch, self._run):
            return f"the position is of epoch {position.epoch}, and this is {self._epoch}"
        if position.seq > self._last:
            return "the position is after the newest change"
        if self.lost_after(position.seq):
            return "the position is too old: changes since then are no longer kept"
        return position
