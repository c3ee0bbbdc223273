"""The reason why a job waits, for people and as data: position, blocking leases, their ends.

The scheduler explains why a request waits; the blocking leases follow from their devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from contract.states import Reason
from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId
from corekit.units import format_percent
from corekit.values import Value
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import RETRY_AT, Record, Step
from gpu_scheduler.protocol.answers import LeasesAnswer
from gpu_scheduler.verdicts import Explanation, HeldBack, NoFit
from orchgpu.jobs.summary import waits_ahead

#: Reasons of a device that the end of leases on it removes.
_LENT = frozenset(
    {
        NoFit.MEMORY,
        NoFit.COMPUTE,
        NoFit.EXCLUSIVE_TAKEN,
        NoFit.SHARED_TAKEN,
        NoFit.RESERVED_FOR_HEAD,
    }
)
_UNREACHABLE = frozenset({NoFit.HOST_STALE, NoFit.HOST_LOST})
_OUT_OF_SERVICE = _UNREACHABLE | {NoFit.DRAINED, NoFit.SUSPECT, NoFit.BAD}
_RULES = {HeldBack.QUOTA: Reason.QUOTA, HeldBack.POLICY: Reason.HELD_BY_POLICY}
#: Leases named in a sentence; JSON has all of them.
_NAMED_MAX = 3
_BLOCKED_BY = ". Blocked by "
#: For each one the scheduler evaluates every device.
EXPLAINED_MAX = 20
#: An explanation is asked for again after this long.
EXPLAINED_KEPT_S = 3.0


class BlockingLease(Value):
    """A share of a device that another attempt holds."""

    lease: str
    attempt: str
    host: str
    index: int
    memory_mib: int
    compute_pct: int | float
    ends_in_s: float | None  #: at the latest; None = no stated length

    @property
    def share(self) -> str:
        """The device, and the size of the share."""
        return (
            f"{self.host}/{self.index} ({self.memory_mib} MiB, {format_percent(self.compute_pct)})"
        )

    @property
    def ends(self) -> str:
        """The time at which the lease ends, as far as it is known."""
        if self.ends_in_s is None:
            return "of no stated length"
        return f"ends in {self.ends_in_s:.0f} s at the latest"


async def waits(client: SchedulerClient, record: Record) -> Explanation | None:
    """Reason, position and expected start of a waiting job; None when it does not wait."""
    ahead = waits_ahead(record)
    if record.step is not Step.WAITING and not ahead:
        return None
    try:
        found = (await client.explain(holder=record.holder)).explanation
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return None  # granted between the two calls
    return found if found.after or not ahead else None  # booked between the two calls


class Explanations:
    """The newest explanations, by attempt; many readers of one queue ask once."""

    def __init__(self, client: SchedulerClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._kept: dict[AttemptId, tuple[float, Explanation]] = {}
        self._asking = asyncio.Lock()

    async def of(self, attempts: Sequence[AttemptId]) -> dict[AttemptId, Explanation]:
        """The explanations of the first `EXPLAINED_MAX` attempts that still wait."""
        async with self._asking:
            now_s = self._clock.monotonic_s()
            oldest_s = now_s - EXPLAINED_KEPT_S
            self._kept = {a: one for a, one in self._kept.items() if oldest_s < one[0]}
            missing = [a for a in attempts[:EXPLAINED_MAX] if a not in self._kept]
            for attempt, found in zip(
                missing, await asyncio.gather(*map(self._ask, missing)), strict=True
            ):
                if found is not None:
                    self._kept[attempt] = (now_s, found)
            return {a: self._kept[a][1] for a in attempts if a in self._kept}

    async def _ask(self, attempt: AttemptId) -> Explanation | None:
        try:
            return (await self._client.explain(attempt=attempt)).explanation
        except AppError as error:
            if error.code in (ErrorCode.NOT_FOUND, ErrorCode.DENIED):
                return None  # granted or withdrawn by now, or not for this key
            raise


def reason_of_wait(why: Explanation) -> Reason:
    """One reason of the closed set: a policy's reason first, which holds at any position."""
    if why.after:
        return Reason.AHEAD
    if why.pool:
        return Reason.HOST_STARTS
    if why.held_back is HeldBack.OUT_OF_SERVICE:
        reasons = set(why.counts) & _OUT_OF_SERVICE
        only_unreachable = bool(reasons) and reasons <= _UNREACHABLE
        return Reason.HOST_UNREACHABLE if only_unreachable else Reason.OUT_OF_SERVICE
    if why.held_back is not None:
        return _RULES.get(why.held_back, Reason.SCHEDULER_FULL)
    if why.devices_fitting or (why.position or 1) > 1 or NoFit.RESERVED_FOR_HEAD in why.counts:
        return Reason.QUEUED_BEHIND
    if not _LENT & set(why.counts) and _UNREACHABLE & set(why.counts):
        return Reason.HOST_UNREACHABLE
    return Reason.BUSY


def blocking_leases(why: Explanation, live: LeasesAnswer) -> list[BlockingLease]:
    """The leases on devices that could otherwise hold the request, the soonest to end first."""
    lent = {verdict.device for verdict in why.devices if verdict.reason in _LENT}
    found = [
        BlockingLease(
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
        if share.device in lent and not lease.after  # else it waits for them itself
    ]
    return sorted(found, key=lambda one: (one.ends_in_s is None, one.ends_in_s or 0.0))


def wait_sentence(why: Explanation, others: Sequence[BlockingLease]) -> str:
    """The scheduler's sentence, with the blocking leases and their ends."""
    if not others:
        return why.sentence
    leases: dict[str, list[BlockingLease]] = {}
    for one in others:
        leases.setdefault(one.lease, []).append(one)
    named = "; ".join(_lease_sentence(shares) for shares in list(leases.values())[:_NAMED_MAX])
    more = f"; and {len(leases) - _NAMED_MAX} more" if len(leases) > _NAMED_MAX else ""
    return f"{why.sentence}{_BLOCKED_BY}{named}{more}"


def _lease_sentence(shares: Sequence[BlockingLease]) -> str:
    """The shares of one lease on the devices in question."""
    devices = ", ".join(one.share for one in shares[:_NAMED_MAX])
    more = f" and {len(shares) - _NAMED_MAX} more" if len(shares) > _NAMED_MAX else ""
    return f"{shares[0].lease} of {shares[0].attempt} on {devices}{more}, {shares[0].ends}"


def in_lines(sentence: str) -> str:
    """The sentence with the leases on a line of their own."""
    return sentence.replace(_BLOCKED_BY, "\n  blocked by ")


def without_leases(sentence: str) -> str:
    """The sentence without the leases, as a list of many jobs has it."""
    return sentence.partition(_BLOCKED_BY)[0]


def pause_sentence(record: Record, now_s: float) -> str:
    """The reason why a job waits, other than for a device; "" when it proceeds or is over."""
    if record.step is Step.RECEIVED and record.times.get(RETRY_AT, 0.0) > now_s:
        due_s = record.times[RETRY_AT] - now_s
        why = f" ({record.reason})" if record.reason else ""
        return f"attempt {record.attempt} failed{why}; the next one is due in {due_s:.0f} s"
    if record.step is Step.ENDED or record.owner is not None:
        if record.step is not Step.STAGED:
            return ""
        what = "opened a session" if record.with_device else "started"
        return f"the envelope is staged; the function has not {what} yet"
    if record.step in (Step.STAGED, Step.RUNNING):
        return "the job has no owner now; its function continues, and any orchestrator adopts it"
    return "the job has no owner now: an orchestrator adopts it, or its message is delivered again"
