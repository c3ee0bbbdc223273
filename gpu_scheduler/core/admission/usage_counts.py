"""Counts of waiting requests and job records by key, by tenant, and in total, for the limits.

Derived from records and queue, and updated with them (`State.set_record`, apply.py), so a replay
gives the same counts. A waiting job counts for the key of its record, even while no session owns
it; a waiting reservation counts for the key of its session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from corekit.ids import JobId
from gpu_scheduler.model import Record, Step
from gpu_scheduler.protocol.changes import Waiting
from gpu_scheduler.protocol.keys import key_of


@dataclass(slots=True)
class UsageCount:
    """The counts of one key, one tenant, or all."""

    waiting: int = 0  #: requests in the queue
    live: int = 0  #: records of jobs that have not ended
    ended: dict[JobId, None] = field(default_factory=dict)  #: history, ordered by end time

    @property
    def records(self) -> int:
        return self.live + len(self.ended)

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.live or self.ended)


NO_USAGE = UsageCount()  #: the counts of an unknown key or tenant; never changed


@dataclass(slots=True)
class UsageCounts:
    """All counts; the count of a key or tenant is removed once it is empty."""

    total: UsageCount = field(default_factory=UsageCount)
    keys: dict[str, UsageCount] = field(default_factory=dict)
    tenants: dict[str, UsageCount] = field(default_factory=dict)

    def of_key(self, key: str) -> UsageCount:
        return self.keys.get(key, NO_USAGE)

    def of_tenant(self, tenant: str) -> UsageCount:
        return self.tenants.get(tenant, NO_USAGE)

    def record_changed(self, old: Record | None, new: Record | None) -> None:
        """Count a record that is written (`old` None: a new one) or evicted (`new` None)."""
        if old is not None and new is not None and _counts_as(old) == _counts_as(new):
            return  # most writes: the job continues
        if old is not None:
            self._count_record(old, -1)
        if new is not None:
            self._count_record(new, +1)

    def reservation_waits(self, waiting: Waiting, by: int) -> None:
        """Count a reservation that is queued (+1) or leaves the queue (−1)."""
        if waiting.holder is not None:
            return
        key, tenant = key_of(waiting.session), waiting.request.tenant
        for usage in self._scopes(key, tenant):
            usage.waiting += by
        self._tidy(key, tenant)

    def _count_record(self, record: Record, by: int) -> None:
        for usage in self._scopes(record.key, record.tenant):
            if record.step is not Step.ENDED:
                usage.live += by
                usage.waiting += by if record.step is Step.WAITING else 0
            elif by > 0:
                usage.ended[record.holder] = None
            else:
                del usage.ended[record.holder]
        self._tidy(record.key, record.tenant)

    def _scopes(self, key: str, tenant: str | None) -> Iterator[UsageCount]:
        yield self.total
        if key:
            yield _of(self.keys, key)
        if tenant is not None:
            yield _of(self.tenants, tenant)

    def _tidy(self, key: str, tenant: str | None) -> None:
        if key and self.keys[key].is_empty:
            del self.keys[key]
        if tenant is not None and self.tenants[tenant].is_empty:
            del self.tenants[tenant]


def _counts_as(record: Record) -> tuple[str, str | None, bool, bool]:
    return record.key, record.tenant, record.step is Step.ENDED, record.step is Step.WAITING


def _of(usage_counts: dict[str, UsageCount], name: str) -> UsageCount:
    usage = usage_counts.get(name)
    if usage is None:
        usage = usage_counts[name] = UsageCount()
    return usage
