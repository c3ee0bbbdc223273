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
from collections.abc import AsyncGenerator, Callable

from corekit.aio.event_stream import BEAT, server_sent
from corekit.decode import encode_json
from orchgpu.jobs.rights import KeyRights
from orchgpu.web.http.sessions import Session, Sessions, Streams
from orchgpu.web.model.picture import Batch, Change, Picture

#: Four batches a second at most.
BATCH_EVERY_S = 0.25
#: A comment after so long without an event.
BEAT_EVERY_S = 15.0
#: Interval between checks whether the browser is still there.
LOOK_EVERY_S = 0.5
#: What a browser does after a break, in milliseconds.
_RETRY = b"retry: 1000\n\n"


def event_text(kind: str, data: object, id_: str = "") -> bytes:
    """One event of a stream."""
    return server_sent(encode_json(data), kind, id_)


class LiveChanges:
    """Closes the batches of a picture; every browser reads them at its own pace."""

    def __init__(self, picture: Picture, sessions: Sessions, streams: Streams) -> None:
        self._picture = picture
        self._sessions = sessions
        self._streams = streams
        self._closed = asyncio.Event()  # replaced when it is set: the next batch, or the end
        self._over = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(BATCH_EVERY_S)
            if self._picture.batches.close() is not None:
                self._wake()

    def _wake(self) -> None:
        closed, self._closed = self._closed, asyncio.Event()
        closed.set()

    @property
    def is_over(self) -> bool:
        """The server stops: a request that waits is answered now."""
        return self._over

    def end_all(self) -> None:
        self._over = True
        self._wake()

    async def events(
        self, session: Session, last_id: str | None, is_gone: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """The events of one browser, from `last_id` on, until its session or the server ends.

        `is_gone`: the browser has disconnected. One that reads too slowly gets `reset`.
        """
        batches = self._picture.batches
        with self._streams.open(session) as stream:
            newest = batches.number
            resumed = newest if last_id is None else batches.resumable(last_id)
            yield _RETRY
            position = batches.id_of(newest)
            yield event_text("ready", {"position": position}, position)
            if resumed is None:
                yield event_text("reset", {}, position)
            read, quiet_s = newest if resumed is None else resumed, 0.0
            while self._sessions.is_open(session) and not is_gone() and not self._over:
                if stream.evicted:
                    yield event_text("evicted", {})
                    return
                if (batch := batches.after(read)) is not None:
                    read, quiet_s = batch.number, 0.0
                    yield self._text(batch, session.viewer)
                elif not await self.changed(LOOK_EVERY_S):
                    quiet_s += LOOK_EVERY_S
                    if quiet_s >= BEAT_EVERY_S:
                        quiet_s = 0.0
                        yield BEAT

    async def changed(self, within_s: float) -> bool:
        """Wait for the next batch; False when there is none within this time."""
        try:
            async with asyncio.timeout(within_s):
                return await self._closed.wait()
        except TimeoutError:
            return False

    def _text(self, batch: Batch, viewer: KeyRights) -> bytes:
        id_ = self._picture.batches.id_of(batch.number)
        if batch.overflow:
            return event_text("reset", {}, id_)
        shown = [self._detailed(change, viewer) for change in batch.changes]
        return event_text("changes", shown, id_)

    def _detailed(self, change: Change, viewer: KeyRights) -> object:
        """The change with the thing as it is now, as the viewer sees it."""
        match change["event"]:
            case "job":
                job = self._picture.jobs.get(str(change["job"]))
                return change if job is None else {**change, "summary": viewer.shown(job)}
            case "device":
                host, device = str(change["host"]), str(change["device"])
                return {**change, "entry": self._picture.fleet.device(host, device)}
            case _:
                return change
