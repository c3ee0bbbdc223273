"""Ring: the newest changes of this run, for all readers, also for those that return after a gap."""

from __future__ import annotations

from corekit.decode import encode_json
from corekit.ring import Ring
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


class ChangeRing(Ring[RingEvent]):
    """The changes of one run, and their positions."""

    def __init__(self, epoch: int, run: str) -> None:
        super().__init__(EVENTS_MAX, BYTES_MAX)
        self._epoch = epoch
        self._run = run

    def add(self, event: words.WatchEvent, at_s: float) -> None:
        fields = encode_json(event)
        change = RingEvent(seq=self.last + 1, at_s=at_s, event=event, fields=fields)
        self.append(change, len(fields))

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
        if position.seq > self.last:
            return "the position is after the newest change"
        if self.lost_after(position.seq):
            return "the position is too old: changes since then are no longer kept"
        return position
