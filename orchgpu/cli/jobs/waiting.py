"""Why a job does not move just now, for people and as data: its place, what is short, until when.

The scheduler says why a request waits; which leases are in its way follows from where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contract.states import Reason
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import RETRY_AT, Explanation, HeldBack, NoFit, Record, Step
from gpu_scheduler.protocol.ops import PAGE_MAX

if TYPE_CHECKING:
    from gpu_scheduler.client import SchedulerClient
    from gpu_scheduler.protocol.answers import LeasesAnswer

#: What a device says that will say otherwise when leases on it have ended.
_LENT = frozenset(
    {
        NoFit.MEMORY,
        NoFit.COMPUTE,
        NoFit.EXCLUSIVE_TAKEN,
        NoFit.SHARED_TAKEN,
        NoFit.RESERVED_FOR_HEAD,
    }
)
_SILENT = frozenset({NoFit.HOST_STALE, NoFit.HOST_LOST})
_AWAY = _SILENT | {NoFit.DRAINED, NoFit.SUSPECT, NoFit.BAD}
#: Leases named in a sentence; JSON has all of them.
_NAMED_MAX = 3
_IN_ITS_WAY = ". In its way: "


@dataclass(frozen=True, slots=True, kw_only=True)
class InTheWay:
    """A part of a device that somebody else has."""

    lease: str
    attempt: str
    host: str
    index: int
    memory_mib: int
    compute_pct: int
    ends_in_s: float | None  #: at the latest; None = for no stated length

    @property
    def has(self) -> str:
        """Where, and how much of it."""
        return f"{self.host}/{self.index} ({self.memory_mib} MiB, {self.compute_pct} %)"

    @property
    def ends(self) -> str:
        """When it is free again, as far as that is known."""
        if self.ends_in_s is None:
            return "for no stated length"
        return f"ends in {self.ends_in_s:.0f} s at the latest"


async def newest_records(
    client: SchedulerClient, limit: int, wanted: Callable[[Record], bool] = lambda _: True
) -> list[Record]:
    """The newest job records of those that are wanted, page by page."""
    found: list[Record] = []
    after: str | None = None
    while len(found) < limit:
        page = await client.records(limit=PAGE_MAX, after=after)
        if not page:
            break
        after = page[-1].holder
        found += [record for record in page if wanted(record)]
    return found[:limit]


async def waits(client: SchedulerClient, record: Record) -> Explanation | None:
    """Why a job waits, its place and when it is expected to go on; None when it does not wait."""
    if record.step is not Step.WAITING:
        return None
    try:
        return (await client.explain(holder=record.holder)).explanation
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return None  # granted between the two questions


def reason_of_wait(why: Explanation) -> Reason:
    """Which of the closed set keeps a request waiting: a rule first, which holds at any place."""
    if why.held_back is HeldBack.OUT_OF_SERVICE:
        silent = set(why.counts) & _AWAY <= _SILENT and set(why.counts) & _SILENT
        return Reason.HOST_UNREACHABLE if silent else Reason.OUT_OF_SERVICE
    if why.held_back is not None:
        return Reason.QUOTA if why.held_back is HeldBack.QUOTA else Reason.SCHEDULER_FULL
    if why.devices_fitting or (why.position or 1) > 1 or NoFit.RESERVED_FOR_HEAD in why.counts:
        return Reason.QUEUED_BEHIND
    if not _LENT & set(why.counts) and _SILENT & set(why.counts):
        return Reason.HOST_UNREACHABLE
    return Reason.BUSY


def in_the_way(why: Explanation, live: LeasesAnswer) -> list[InTheWay]:
    """The leases on devices that would take the request without them, the soonest to end first."""
    lent = {verdict.device for verdict in why.devices if verdict.reason in _LENT}
    found = [
        InTheWay(
            lease=lease.id,
            attempt=lease.attempt,
            host=share.host,
            index=share.index,
            memory_mib=share.memory_mib,
            compute_pct=share.compute_guarantee_pct,
            ends_in_s=live.ends_in_s.get(lease.id),
        )
        for lease in live.leases
        for share in lease.shares
        if share.device in lent
    ]
    return sorted(found, key=lambda one: (one.ends_in_s is None, one.ends_in_s or 0.0))


def told_waiting(why: Explanation, others: Sequence[InTheWay]) -> str:
    """The scheduler's sentence, and whose leases are in the way until when."""
    if not others:
        return why.sentence
    leases: dict[str, list[InTheWay]] = {}
    for one in others:
        leases.setdefault(one.lease, []).append(one)
    named = "; ".join(_told_lease(shares) for shares in list(leases.values())[:_NAMED_MAX])
    more = f"; and {len(leases) - _NAMED_MAX} more" if len(leases) > _NAMED_MAX else ""
    return f"{why.sentence}{_IN_ITS_WAY}{named}{more}"


def _told_lease(shares: Sequence[InTheWay]) -> str:
    """All that one lease has of the devices in question."""
    devices = ", ".join(one.has for one in shares[:_NAMED_MAX])
    more = f" and {len(shares) - _NAMED_MAX} more" if len(shares) > _NAMED_MAX else ""
    return f"{shares[0].lease} of {shares[0].attempt} on {devices}{more}, {shares[0].ends}"


def in_lines(told: str) -> str:
    """The same with the leases on a line of their own."""
    return told.replace(_IN_ITS_WAY, "\n  in its way: ")


def told_pause(record: Record, now_s: float) -> str:
    """Why a job that waits for no device does not move; "" when it does, or is over."""
    if record.step is Step.RECEIVED and record.times.get(RETRY_AT, 0.0) > now_s:
        due_s = record.times[RETRY_AT] - now_s
        why = f" ({record.reason})" if record.reason else ""
        return f"attempt {record.attempt} failed{why}; the next one is due in {due_s:.0f} s"
    if record.step is Step.ENDED or record.owner is not None:
        return (
            "its envelope is stored; its function has not opened its session yet"
            if record.step is Step.STAGED
            else ""
        )
    if record.step in (Step.STAGED, Step.RUNNING):
        return "no orchestrator acts for it now; its function goes on, any orchestrator adopts it"
    return "no orchestrator acts for it now: it is adopted, or its message comes again"
