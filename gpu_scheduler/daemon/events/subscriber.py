"""One reader of the event stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from corekit.decode import encode_json
from corekit.values import Value
from gpu_scheduler.daemon.events.ring import ChangeRing
from gpu_scheduler.protocol import watch as words

#: The shortest time between two messages of a stream: a small job makes ten changes within it, and
#: each message costs as much as several events.
GATHER_S = 0.1
#: Most events of one message.
PORTION_MAX = 256

Redact = Callable[[words.WatchEvent], words.WatchEvent]


class StreamLine(Value):
    """One event as JSON, and the position after it; "" = none."""

    text: bytes
    position: str = ""


@dataclass(frozen=True, slots=True)
class _Unread:
    event: words.WatchEvent
    at_s: float
    position: str
    fields: bytes


class Subscriber:
    """A stream: events of its own (the state at its begin, beats), then changes from the ring.

    A reader that is so slow that the ring has lost its next change gets `lost` as the last event.
    """

    def __init__(self, ring: ChangeRing, after: int, redact: Redact | None = None) -> None:
        """Changes follow number `after`; without `redact` the reader may read everything."""
        self._ring = ring
        self._read = after
        self._redact = redact
        self._own: deque[_Unread] = deque()
        self._seq = 0
        self._ending: _Unread | None = None
        self._over = False
        self._wake, self._ends = asyncio.Event(), asyncio.Event()

    def write(self, event: words.WatchEvent, at_s: float, *, placed: bool = False) -> None:
        """Write an event of this stream alone; `placed`: with the position that was reached."""
        if self._redact is not None:
            event = self._redact(event)
        position = str(self._ring.position(self._read)) if placed else ""
        self._own.append(_Unread(event, at_s, position, encode_json(event)))
        self._wake.set()

    def beat(self, at_s: float) -> None:
        """Write a beat, unless the reader has events to read."""
        if not self._own and self._read == self._ring.last and self._ending is None:
            self.write(words.Beat(), at_s, placed=True)

    def changed(self) -> None:
        """Read on: the ring has a new change."""
        self._wake.set()

    def end(self, why: str, at_s: float) -> None:
        """End the stream after the changes so far."""
        if self._ending is None:
            lost = words.Lost(why=why)
            self._ending = _Unread(lost, at_s, "", encode_json(lost))
            self._wake.set()
            self._ends.set()

    def close(self) -> None:
        """End the stream at once, because its key was revoked."""
        self._skip()
        self.end("the key was revoked", 0.0)

    def left(self) -> None:
        """End the stream, because its reader is gone."""
        self._skip()
        self.end("the reader is gone", 0.0)

    async def portions(self) -> AsyncIterator[list[StreamLine]]:
        """The events, until the stream is over; those of one moment together."""
        until_s = 0.0
        while not self._over:
            portion = list(islice(self._lines(), PORTION_MAX))
            if portion:
                yield portion
                until_s = asyncio.get_running_loop().time() + GATHER_S
                continue
            self._wake.clear()
            await self._wake.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._ends.wait()

    def _lines(self) -> Iterator[StreamLine]:
        """The events until now."""
        while not self._over and (unread := self._next()) is not None:
            yield self._line(unread)

    def _next(self) -> _Unread | None:
        if self._own:
            return self._own.popleft()
        change = self._ring.next_after(self._read)
        if change is not None:
            self._read = change.seq
            event, fields = change.event, change.fields
            if self._redact is not None and (seen := self._redact(event)) is not event:
                event, fields = seen, encode_json(seen)
            return _Unread(event, change.at_s, str(self._ring.position(change.seq)), fields)
        if self._ring.lost_after(self._read):
            self._skip()
            self.end("the reader is too slow", 0.0)
        self._over = self._ending is not None
        return self._ending

    def _skip(self) -> None:
        self._own.clear()
        self._read = self._ring.last

    def _line(self, unread: _Unread) -> StreamLine:
        self._seq += 1
        head: dict[str, object] = {
            "event": words.EVENTS[type(unread.event)],
            "seq": self._seq,
            "at_s": unread.at_s,
        }
        if unread.position:
            head["position"] = unread.position
        text = encode_json(head)
        if unread.fields != b"{}":
            text = text[:-1] + b"," + unread.fields[1:]
        return StreamLine(text=text, position=unread.position)
