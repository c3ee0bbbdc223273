"""Builders for the job machine's tests: a function, events, records and grants."""

from __future__ import annotations

import json
from typing import Any, TypedDict, TypeVar

from contract.keys import job_id
from contract.result import Report, Result
from corekit.budget import Budget
from corekit.ids import AttemptId, DeviceId, HostId, IdSource, JobId, LeaseId
from gpu_scheduler.model import (
    DeviceKind,
    GrantedLease,
    Lease,
    LeaseState,
    Record,
    Request,
    Share,
    Step,
)
from gpu_scheduler.verdicts import Explanation
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.function import Function, Output
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.core.table import GONE, row_of
from orchgpu.replica.actions.performer import Performer


class Now(TypedDict):
    """The two times of an event."""

    at_s: float
    wall_s: float


ME = "session-me"
NOW: Now = {"at_s": 100.0, "wall_s": 1_000_000.0}
FUNCTION = Function(
    name="search",
    revision="1",
    queue_url="http://sqs/search-jobs",
    dead_letter_url="http://sqs/search-dlq",
    completion_url="http://sqs/search-done",
    input_bucket="in",
    intermediate_bucket="mid",
    outputs=(Output(bucket="out", prefix="hits"),),
    request=Request(memory_mib=512, kinds=(DeviceKind.CPU,)),
)
VERSION = "v1"
JOB = job_id("in", "seqs/a b.fasta", VERSION, "search")
EXPLANATION = Explanation(
    devices_known=1,
    devices_fitting=0,
    counts={"MEMORY": 1},
    position=1,
    largest_fit="1 × cpu",
    sentence="waits for memory",
)

A = TypeVar("A", bound=do.Action)


def s3_record(key: str = "seqs/a+b.fasta", version: str | None = VERSION, **entry: Any) -> Any:
    item: dict[str, Any] = {"key": key, "size": 10, "eTag": "e1", "sequencer": "0A", **entry}
    if version is not None:
        item["versionId"] = version
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": "2026-01-01T00:00:00.000Z",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": "in"}, "object": item},
    }


def body(*records: Any, **extra: Any) -> str:
    return json.dumps({"Records": list(records or (s3_record(),)), **extra})


def message(
    text: str | None = None, message_id: str = "m1", receipt_handle: str = "h1"
) -> on.Event:
    return on.MessageReceived(
        **NOW,
        function="search",
        message_id=message_id,
        receipt_handle=receipt_handle,
        body=text or body(),
    )


def granted(n: int = 1, fence: int = 7) -> GrantedLease:
    share = Share(
        host=HostId("gpu-a"),
        device=DeviceId("gpu-a/cpu0"),
        index=0,
        kind=DeviceKind.CPU,
        model="EPYC",
        memory_mib=512,
        compute_guarantee_pct=0,
        compute_limit_pct=100,
        exclusive=False,
    )
    lease = Lease(
        id=LeaseId(f"lease-{n}"),
        attempt=AttemptId(f"{JOB}:{n}"),
        holder=JobId(JOB),
        fence=fence,
        state=LeaseState.RESERVED,
        shares=(share,),
    )
    return GrantedLease(
        lease=lease, epoch=1, gateways={"gpu-a": "127.0.0.1:1"}, secrets={"gpu-a": "00"}
    )


def record(step: Step = Step.RESERVED, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "holder": JobId(JOB),
        "revision": 3,
        "owner": ME,
        "attempt": 1,
        "step": step,
        "ended_owners": ("s-dead",),
        "waiting_since_s": None,
        "handle": "h-record",
        **changes,
    }
    return Record(**values)


def result(state: str = "SUCCEEDED", **changes: Any) -> Result:
    values: dict[str, Any] = {
        "job_id": JOB,
        "state": state,
        "reason": "NONE",
        "attempt": 1,
        "nonce": "n",
        "exit_code": 0,
        "files": [],
        "times": {},
        "log_tail": "",
        "ended_at_s": 500.0,
        **changes,
    }
    return Result(**values)


def report(reason: str = "EXIT_NONZERO", attempt: int = 1) -> Report:
    return Report(
        job_id=JOB,
        attempt=attempt,
        nonce="n",
        reason=reason,
        exit_code=3,
        detail="exit code 3",
        log_tail="last words",
        times={},
    )


class Bench:
    """A machine, and the actions its last event led to."""

    def __init__(self) -> None:
        self.machine = OrchestratorMachine(budget=Budget(), session=ME, ids=IdSource(1))
        self.machine.set_functions({"search": FUNCTION})
        self.actions: tuple[do.Action, ...] = ()

    def tell(self, event: on.Event) -> tuple[do.Action, ...]:
        jobs = self.machine.jobs
        before = [(job, job.phase, row_of(job, event)) for job in jobs.values()]
        self.actions = self.machine.handle(event).actions
        for job, phase, row in before:
            after = job.phase if any(other is job for other in jobs.values()) else GONE
            assert after == phase or (row and after in row.to), f"not drawn: {phase} ─▶ {after}"
        return self.actions

    def on(self, kind: type[on.JobEvent], **fields: Any) -> tuple[do.Action, ...]:
        """Hand in an event of the usual job, now."""
        return self.tell(kind(**{**NOW, "job": JOB, **fields}))

    def one(self, kind: type[A]) -> A:
        found = [a for a in self.actions if isinstance(a, kind)]
        assert len(found) == 1, f"wanted one {kind.__name__} in {self.actions}"
        return found[0]

    def kinds(self) -> list[str]:
        """Names of the actions, pauses left out: what the world is asked to do."""
        return [
            type(a).__name__
            for a in self.actions
            if not isinstance(a, (do.ArmTimer, do.RepeatLater))
        ]

    # the usual way, step by step

    def received(self) -> Bench:
        self.tell(message())
        return self

    def read(self) -> Bench:
        self.received()
        self.tell(input_read())
        self.tell(on.ResultRead(**NOW, job=JOB, result=None))
        return self

    def reserved(self) -> Bench:
        self.read()
        self.tell(on.AttemptGranted(**NOW, job=JOB, attempt=1, granted=granted(), record=record()))
        return self

    def running(self) -> Bench:
        self.reserved().staged()
        return self

    def staged(self, n: int = 1) -> None:
        self.on(on.EnvelopeStaged, attempt=n)
        self.on(on.StagedRecorded, attempt=n)

    def unresolved(self, found: Report | None, attempt: int = 1) -> None:
        """There is no result; the report of the attempt is that one."""
        self.on(on.ResultRead, result=None)
        self.on(on.ReportRead, attempt=attempt, report=found)

    def retried(self) -> None:
        """The pause before the next attempt is over, and there is no result."""
        self.on(on.TimerFired, timer=do.Timer.NEXT_ATTEMPT)
        self.on(on.ResultRead, result=None)

    def adopted(self, left: Record) -> None:
        """The record of a job without an owner is adopted as it is."""
        self.on(on.Orphaned, function="search", record=left)
        self.on(on.Adopted, record=left, granted=None)

    def ended(self, reason: Any, detail: str = "") -> Bench:
        self.tell(
            on.LeaseChanged(
                **NOW, job=JOB, attempt=1, state=LeaseState.ENDED, reason=reason, detail=detail
            )
        )
        return self


async def outcome(performer: Performer, action: do.Action) -> on.Event | None:
    """What one action leads to, in the end."""
    work = performer.perform(action)
    return None if work is None else await work


def input_read(etag: str = "e1", modified: str = "t1") -> on.InputRead:
    return on.InputRead(
        **NOW, job=JOB, etag=etag, version_id=VERSION, last_modified=modified, size=10
    )
