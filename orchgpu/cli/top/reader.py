"""The reads of the scheduler and of the cloud for the screen, live by the scheduler's pushes.

Job records are current by their changes (`JobsFeed`). Of the rest, only what the view shows is read
at every change; the others, for the counts of the overview, every `OTHERS_EVERY_S`. A read that
took long is followed by a pause of several times its length: ten thousand devices cost neither the
scheduler nor the terminal more than a part of their time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from corekit.aio.clock import SystemClock
from corekit.errors import AppError
from corekit.values import replace
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.client import ITEMS_PER_PAGE
from gpu_scheduler.protocol import ops
from orchgpu.cli.top.rows import ViewName
from orchgpu.cli.top.snapshot import ScreenData, Story
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.joblog import Line, function_lines, tail_lines
from orchgpu.jobs.known import Known, look, scheduled
from orchgpu.jobs.live.feed import GATHER_S, JobsFeed
from orchgpu.jobs.scheduler import NO_ANSWER
from orchgpu.jobs.waiting import Explanations

#: The view is read again after so long without a push: usage of devices is not pushed.
READ_EVERY_S = 2.0
OTHERS_EVERY_S = 10.0
#: A pause is so many times as long as the read before it.
PAUSE_PER_READ = 4.0
PAUSE_MAX_S = 10.0
#: Requests whose reason is asked, the first of each kind; for each the scheduler evaluates every
#: device.
EXPLAINED_MAX = 8


class ScreenReader:
    """Reads again and again what one view shows; `update` gets every new snapshot."""

    def __init__(
        self, feed: JobsFeed, cloud: JobCloud, update: Callable[[ScreenData], None]
    ) -> None:
        self.snapshot = ScreenData()
        self._feed = feed
        self._cloud = cloud
        self._update = update
        self._explanations = Explanations(feed.client, SystemClock())
        self._view = ViewName.FLEET
        self._job: str | None = None
        self._read_at_s: dict[ViewName, float] = {}

    def show(self, view: ViewName, job: str | None = None) -> None:
        """Read this view from now on, at once."""
        if job is not None and job != self._job:
            self.snapshot = replace(self.snapshot, story=None, story_error=None)
        self._view, self._job = view, job or self._job
        self._read_at_s.pop(view, None)
        self._feed.wake()

    def wake(self) -> None:
        self._feed.wake()

    async def run(self) -> None:
        """Read until cancelled; a scheduler that does not answer is asked again."""
        while True:
            began_s = time.monotonic()
            try:
                await self._feed.subscribe()
                for view in self._due(began_s):
                    self.snapshot = replace(await self._read(view), scheduler_error=None)
                    self._read_at_s[view] = began_s
                    self._update(self.snapshot)
            except AppError as error:
                if error.code not in NO_ANSWER:
                    raise
                self.snapshot = replace(self.snapshot, scheduler_error=error)
                self._update(self.snapshot)
            pause_s = PAUSE_PER_READ * (time.monotonic() - began_s)
            await self._feed.changed(READ_EVERY_S, min(PAUSE_MAX_S, max(GATHER_S, pause_s)))

    def _due(self, now_s: float) -> list[ViewName]:
        old = now_s - OTHERS_EVERY_S
        shown = [self._view]
        if self._view is not ViewName.JOBS:
            shown.append(ViewName.JOBS)  # the functions of the queue; they are at hand
        others = (ViewName.QUEUE, ViewName.FLEET)
        due = [v for v in others if v not in shown and self._read_at_s.get(v, old) <= old]
        return [*shown, *due]

    async def _read(self, view: ViewName) -> ScreenData:
        client = self._feed.client
        if view is ViewName.FLEET:
            found, leases = await client.inventory(), await client.leases()
            hosts = tuple(sorted(found.hosts, key=lambda host: host.host))
            pools = () if found.fleet is None else found.fleet.pools
            return replace(self.snapshot, hosts=hosts, pools=pools, leases=leases)
        if view is ViewName.QUEUE:
            return await self._queue(client)
        if view is ViewName.JOBS:
            return replace(self.snapshot, records=tuple(await self._feed.newest_records()))
        return await self._story(client)

    async def _queue(self, client: SchedulerClient) -> ScreenData:
        queue = await client.ask(ops.Queue(limit=ITEMS_PER_PAGE))
        first = {one.request: one for one in reversed(queue.queue)}  # of each kind the first one
        asked = (one.attempt for one in (*queue.queue[:EXPLAINED_MAX], *first.values()))
        waits = await self._explanations.of(list(dict.fromkeys(asked))[: 2 * EXPLAINED_MAX])
        return replace(self.snapshot, queue=queue, waits=waits)

    async def _story(self, client: SchedulerClient) -> ScreenData:
        job = self._job
        if job is None:
            return self.snapshot
        known = await scheduled(client, job)
        try:
            story = await asyncio.to_thread(lambda: self._with_lines(look(self._cloud, known, job)))
            return replace(self.snapshot, story=story, story_error=None)
        except AppError as error:
            if known is None:
                return replace(self.snapshot, story=None, story_error=error)
            alone = Known(job=job, function=None, scheduled=known, result=None, reports={})
            return replace(self.snapshot, story=Story(known=alone), story_error=error)

    def _with_lines(self, known: Known) -> Story:
        lines: list[Line] = []
        with suppress(AppError):  # a log that was never written, or may not be read
            lines = function_lines(self._cloud.services, known)
        return Story(known=known, lines=tuple(lines or tail_lines(known)))
