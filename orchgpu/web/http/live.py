"""Live changes as server-sent events: one batch for all browsers, a few times a second.

    event: ready    the stream begins; `data` has its position
    event: changes  a list of changes, each with its kind in `event`
    event: reset    changes are missing: the page loads its views again
    event: evicted  the stream ends, because the key has opened too many

Each event has an id. A browser that reconnects sends the last one and gets what it missed, as far
as that is kept; else `reset`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager

from corekit.decode import encode_json
from orchgpu.jobs.rights import KeyRights
from orchgpu.jobs.summary import JobSummary
from orchgpu.web.http.sessions import Session, Sessions, Streams
from orchgpu.web.model.picture import Batch, Change, Picture

#: Four batches a second at most.
BATCH_EVERY_S = 0.25
#: A comment keeps proxies from closing a quiet stream.
BEAT_EVERY_S = 15.0
#: Interval between checks whether the browser is still there.
LOOK_EVERY_S = 0.5
#: Unread batches of one browser; a slower one starts again.
BEHIND_MAX = 32
_BEAT = b": beat\n\n"
#: What a browser does after a break, in milliseconds.
_RETRY = b"retry: 1000\n\n"


def event_text(kind: str, data: object, id_: str | None = None) -> bytes:
    """One event of a stream. JSON has no line breaks."""
    head = b"" if id_ is None else b"id: %s\n" % id_.encode()
    return head + b"event: %s\ndata: %s\n\n" % (kind.encode(), encode_json(data))


class LiveChanges:
    """Closes the batches of a picture and passes them to every browser."""

    def __init__(self, picture: Picture, sessions: Sessions, streams: Streams) -> None:
        self._picture = picture
        self._sessions = sessions
        self._streams = streams
        self._queues: dict[asyncio.Queue[Batch | None], None] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(BATCH_EVERY_S)
            batch = self._picture.batches.close()
            if batch is not None:
                self._publish(batch)

    def _publish(self, batch: Batch) -> None:
        for queue in self._queues:
            if queue.qsize() >= BEHIND_MAX:
                while not queue.empty():
                    queue.get_nowait()
                batch_for_it = Batch(number=batch.number, changes=(), overflow=True)
                queue.put_nowait(batch_for_it)
            else:
                queue.put_nowait(batch)

    def end_all(self) -> None:
        for queue in self._queues:
            queue.put_nowait(None)

    async def events(
        self, session: Session, last_id: str | None, is_gone: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """The events of one browser, from `last_id` on, until its session or the server ends.

        `is_gone`: the browser has disconnected.
        """
        batches = self._picture.batches
        with self._streams.open(session) as stream, self._queue() as queue:
            missed = batches.since(last_id)
            yield _RETRY
            position = batches.id_of(batches.number)
            yield event_text("ready", {"position": position}, position)
            if missed is None:
                yield event_text("reset", {}, position)
            for batch in missed or ():
                yield self._text(batch, session.viewer)
            quiet_s = 0.0
            while self._sessions.is_open(session) and not is_gone():
                if stream.evicted:
                    yield event_text("evicted", {})
                    return
                try:
                    async with asyncio.timeout(LOOK_EVERY_S):
                        next_batch = await queue.get()
                except TimeoutError:
                    quiet_s += LOOK_EVERY_S
                    if quiet_s >= BEAT_EVERY_S:
                        quiet_s = 0.0
                        yield _BEAT
                    continue
                quiet_s = 0.0
                if next_batch is None:
                    return
                yield self._text(next_batch, session.viewer)

    @contextmanager
    def _queue(self) -> Iterator[asyncio.Queue[Batch | None]]:
        queue: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._queues[queue] = None
        try:
            yield queue
        finally:
            del self._queues[queue]

    def _text(self, batch: Batch, viewer: KeyRights) -> bytes:
        id_ = self._picture.batches.id_of(batch.number)
        if batch.overflow:
            return event_text("reset", {}, id_)
        return event_text("changes", self._shown(batch.changes, viewer), id_)

    def _shown(self, changes: Sequence[Change], viewer: KeyRights) -> list[object]:
        return [self._detailed(change, viewer) for change in changes]

    def _detailed(self, change: Change, viewer: KeyRights) -> object:
        """The change with the thing as it is now, as the viewer sees it."""
        match change["event"]:
            case "job":
                job = self._picture.jobs.get(str(change["job"]))
                return change if job is None else {**change, "summary": _fields(viewer, job)}
            case "device":
                host, device = str(change["host"]), str(change["device"])
                return {**change, "entry": self._picture.fleet.device(host, device)}
            case _:
                return change


def _fields(viewer: KeyRights, job: JobSummary) -> JobSummary:
    return viewer.shown(job)
