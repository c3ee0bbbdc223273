"""Job records of the scheduler: a page-wise search, and their form for programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from corekit.decode import encode
from corekit.ids import JobId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record, Step
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.ops import PAGE_MAX
from orchgpu.core.job import input_from_payload
from orchgpu.jobs.summary import state_of, summary_of

#: A search looks through this many of the newest records; each `PAGE_MAX` of them cost a call.
SCANNED_MAX = 10_000


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
    after: JobId | None = None
    for start in range(0, scanned_max, PAGE_MAX):
        op = ops.Records(limit=min(PAGE_MAX, scanned_max - start), after=after)
        page = (await client.ask(op)).records
        found += [record for record in page if wanted(record)]
        if not page or len(found) >= limit:
            break
        after = page[-1].holder
    return found[:limit]


def record_json(record: Record) -> dict[str, object]:
    """A job record as data; its function and input are those of the orchestrator's block."""
    job = summary_of(record)
    waits = record.step is Step.WAITING and record.waiting_since_s is not None
    return {
        "job_id": job.job,
        "function": job.function,
        "input": job.input,
        **({"files_text": job.files_text} if job.files_text else {}),
        **_step(record),
        "state": job.state,
        "reason": job.reason,
        **({} if job.promised is None else {"promised": job.promised.as_json()}),
        "attempt": job.attempt,
        "owner": record.owner,
        "lease": record.lease,
        "device": job.device,
        **({"place": job.place} if job.place else {}),
        "leases": encode(record.leases),
        "earlier_attempts": encode(record.attempts),
        "waiting_s": time.time() - (record.waiting_since_s or 0.0) if waits else None,
        "updated_s": record.updated_s,
        "times": dict(record.times),
    }


def _step(record: Record) -> dict[str, str | None]:
    """The run and the step of a job, None for a job of its own."""
    source = input_from_payload(record.block)
    of = None if source is None else source.step
    return {"run": of.run if of else None, "step": of.step if of else None}
