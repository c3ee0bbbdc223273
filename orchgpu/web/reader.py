"""Keeps the picture current from one scheduler: its pushes at once, the rest page by page.

Changes of leases and job records are pushes, or events of the stream of its HTTP endpoint; after a
gap in them everything is read again. Each round asks for a bounded amount more, whatever the size
of the system: the newest leases and the queue, and now and then a page each of hosts, leases and
records in turn, which brings what is not pushed (use, warm workers) and corrects what was missed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode
from corekit.ids import HostId, JobId
from gpu_scheduler.client import Disconnected, SchedulerClient
from gpu_scheduler.model import LeaseState, Record
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol import watch as words
from gpu_scheduler.protocol.answers import LeasePush, RecordPush
from orchgpu.jobs.live.feed import GATHER_S, Change, Feed
from orchgpu.web.model.picture import Picture

logger = logging.getLogger(__name__)

#: The next round begins so long after `GATHER_S`, if nothing changes before.
IDLE_ROUND_S = 0.75
#: The shortest time between two pages of hosts and of leases, and between two of records.
PAGES_EVERY_S, RECORDS_EVERY_S = IDLE_ROUND_S, 5.0
#: Devices, and shares of leases, of one page of a round.
PAGE = 250
#: Waiting requests that the picture has.
QUEUE_MAX = 1000


class PictureReader:
    """Keeps a picture current: `take` gets the changes of its feed, `run` reads the rest."""

    def __init__(self, picture: Picture, clock: Clock) -> None:
        self._picture = picture
        self._clock = clock
        self._ended: dict[str, None] = {}  #: leases whose end was pushed
        self._fence = 0  #: of the newest known lease
        self._hosts = _Sweep()
        self._leases = _Sweep()
        self._records = _Sweep()
        self._is_gap = False  #: changes are missing
        self._pages_due_s = self._records_due_s = 0.0  # monotonic

    def take(self, change: Change) -> None:
        match change:
            case Disconnected() | words.Lost():
                self._picture.set_connected(False)
            case words.Started() | words.Reset():
                self._is_gap = True
            case LeasePush(state=LeaseState.ENDED):
                self._ended[change.lease] = None
                self._picture.end_lease(change.lease)
            case RecordPush(record=None):
                self._picture.forget_job(change.holder)
            case RecordPush(record=Record() as record):
                self._put_records([record])

    async def run(self, feed: Feed) -> None:
        while True:
            try:
                if await feed.subscribe() or self._is_gap:
                    await self._begin(feed.client)
                await self._round(feed.client)
            except AppError as error:
                if error.code is ErrorCode.DENIED:
                    raise
                self._picture.set_connected(False)
                logger.debug("the picture is old: %s", error.message)
            await feed.changed(IDLE_ROUND_S, GATHER_S)

    async def _begin(self, client: SchedulerClient) -> None:
        """Read everything once, page by page, after a connection was made."""
        self._hosts, self._leases, self._records = _Sweep(), _Sweep(), _Sweep()
        self._fence, self._is_gap = 0, False
        try:
            for read in (self._leases_page, self._hosts_page, self._records_page):
                while not await read(client):
                    continue
        except AppError:
            self._is_gap = True
            raise

    async def _round(self, client: SchedulerClient) -> None:
        await self._newest_leases(client)
        self._picture.put_queue(await client.ask(ops.Queue(limit=QUEUE_MAX)))
        now_s = self._clock.monotonic_s()
        if now_s >= self._pages_due_s:
            self._pages_due_s = now_s + PAGES_EVERY_S
            await self._hosts_page(client)
            await self._leases_page(client)
        if now_s >= self._records_due_s:
            self._records_due_s = now_s + RECORDS_EVERY_S
            await self._records_page(client)
        self._picture.set_connected(True)
        self._picture.as_of_s = self._clock.wall_s()
        self._ended.clear()

    # ------------------------------------------------------------------ what is new

    async def _newest_leases(self, client: SchedulerClient) -> None:
        more = True
        while more:
            found = await client.ask(ops.Leases(after=self._fence, limit=PAGE))
            live = tuple(one for one in found.leases if one.id not in self._ended)
            self._picture.put_leases(live, found.ends_in_s, self._clock.wall_s())
            self._fence = max([self._fence, *(one.fence for one in found.leases)])
            more = found.more

    def _put_records(self, records: Iterable[Record]) -> None:
        for record in records:
            self._records.seen[record.holder] = None
            self._picture.put_record(record)

    # ------------------------------------------------------------------ in turn

    async def _hosts_page(self, client: SchedulerClient) -> bool:
        """One page of hosts; True at the end of the inventory."""
        sweep = self._hosts
        after = None if sweep.after is None else HostId(sweep.after)
        found = await client.ask(ops.Inventory(after=after, limit=PAGE))
        self._picture.put_hosts(found.hosts, self._clock.wall_s())
        if after is None:
            self._picture.put_pools(found.fleet, self._clock.wall_s())
            self._picture.put_floors(found.floors, found.floors_left_out)
        sweep.seen.update(dict.fromkeys(host.host for host in found.hosts))
        if found.more and found.hosts:
            sweep.after = found.hosts[-1].host
            return False
        for host in [name for name in self._picture.fleet.host_names() if name not in sweep.seen]:
            self._picture.forget_host(host)
        self._hosts = _Sweep()
        return True

    async def _leases_page(self, client: SchedulerClient) -> bool:
        """One page of leases; True at the end: those that were not in any page have ended."""
        sweep = self._leases
        if sweep.after is None:
            sweep.before = dict.fromkeys(self._picture.fleet.leases)
        after = int(sweep.after or 0)
        found = await client.ask(ops.Leases(after=after, limit=PAGE))
        live = tuple(one for one in found.leases if one.id not in self._ended)
        self._picture.put_leases(live, found.ends_in_s, self._clock.wall_s())
        sweep.seen.update(dict.fromkeys(one.id for one in live))
        if found.leases:
            self._fence = max(self._fence, found.leases[-1].fence)
            sweep.after = str(found.leases[-1].fence)
        if found.more and found.leases:
            return False
        for lease in [one for one in sweep.before if one not in sweep.seen]:
            self._picture.end_lease(lease)
        self._leases = _Sweep()
        return True

    async def _records_page(self, client: SchedulerClient) -> bool:
        """One page of records; True at the end: the scheduler forgot those in none."""
        sweep = self._records
        if sweep.after is None:
            sweep.before = dict.fromkeys(one.job for one in self._picture.jobs)
        after = None if sweep.after is None else JobId(sweep.after)
        page = (await client.ask(ops.Records(after=after))).records
        if page:
            self._put_records(page)
            sweep.after = page[-1].holder
            return False
        if after is not None:
            last = await client.ask(ops.RecordOf(holder=after))
            if last.record is None:
                self._records = _Sweep()  # the cursor was forgotten: the rest is not known
                return True
        for job in [one for one in sweep.before if one not in sweep.seen]:
            self._picture.forget_job(job)
        self._records = _Sweep()
        return True


class _Sweep:
    """A pass over a list, page by page."""

    def __init__(self) -> None:
        self.after: str | None = None  #: the cursor; None: the pass has not begun
        self.before: dict[str, None] = {}  #: what was known when it began
        self.seen: dict[str, None] = {}  #: what was reported since
