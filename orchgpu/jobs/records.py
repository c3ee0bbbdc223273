"""Job records of the scheduler: a page-wise search, and their form for people and programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from contract.states import Reason
from corekit.decode import encode
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record, Step
from gpu_scheduler.protocol.ops import PAGE_MAX

#: A search looks through this many of the newest records; each `PAGE_MAX` of them cost a call.
SCANNED_MAX = 10_000

_JOB_REASONS = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Conditions on jobs; an empty set allows all."""

    functions: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    since_s: float = 0.0  #: wall clock

    def __bool__(self) -> bool:
        return self != JobFilter()

    def allows_any_state(self, function: object, updated_s: float) -> bool:
        """True when a job meets the conditions other than the state."""
        return (not self.functions or function in self.functions) and updated_s >= self.since_s

    def allows(self, record: Record) -> bool:
        """True when the record meets all conditions."""
        asked = not self.states or state_of(record) in self.states
        return asked and self.allows_any_state(record.block.get("function"), record.updated_s)


async def newest_records(
    client: SchedulerClient,
    limit: int,
    wanted: Callable[[Record], bool] = lambda _: True,
    *,
    scanned_max: int = SCANNED_MAX,
) -> list[Record]:
    """The job records that match, among the newest `scanned_max`, page by page."""
    found: list[Record] = []
    after: str | None = None
    for start in range(0, scanned_max, PAGE_MAX):
        page = await client.records(limit=min(PAGE_MAX, scanned_max - start), after=after)
        found += [record for record in page if wanted(record)]
        if not page or len(found) >= limit:
            break
        after = page[-1].holder
    return found[:limit]


def state_of(record: Record) -> str:
    """The state of the record's job: a `JobState`."""
    return record.outcome or record.step.value


def reason_of(record: Record) -> str:
    """The job's reason; while it runs, the record may have the reason of the last lease."""
    return record.reason if record.reason in _JOB_REASONS else Reason.NONE.value


def shown_reason(reason: object) -> str:
    """A reason for people: nothing where there is none."""
    return "" if reason in (None, Reason.NONE) else str(reason)


def record_json(record: Record) -> dict[str, object]:
    """A job record as data; its function and input are those of the orchestrator's block."""
    block = record.block
    given = block.get("input")
    source = given if isinstance(given, dict) else {}
    waits = record.step is Step.WAITING and record.waiting_since_s is not None
    return {
        "job_id": record.holder,
        "function": block.get("function"),
        "input": f"{source['bucket']}/{source['key']}" if "key" in source else None,
        "state": state_of(record),
        "reason": reason_of(record),
        "attempt": record.attempt,
        "owner": record.owner,
        "lease": record.lease,
        "device": record.device_text or None,
        "leases": encode(record.leases),
        "earlier_attempts": encode(record.attempts),
        "waiting_s": time.time() - (record.waiting_since_s or 0.0) if waits else None,
        "updated_s": record.updated_s,
        "times": dict(record.times),
    }
