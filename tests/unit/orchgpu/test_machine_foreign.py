"""`completion: object`: a job of foreign code ends when its one object has changed."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from contract.keys import before_key, result_key
from contract.result import Result
from corekit.aio.clock import SystemClock
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from gpu_scheduler.model import EndReason, LeaseLifetime, Request, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.completion import read_completion
from orchgpu.core.function import Target, target_key
from orchgpu.ports import StoredObject
from orchgpu.replica.actions.performer import Performer
from tests.unit.orchgpu.jobs import FUNCTION, JOB, NOW, Bench, granted, outcome, record, s3_record

FOREIGN = replace(
    FUNCTION,
    object_bucket="out",
    object_key="hits/{stem}.tsv",
    input_prefix="seqs",
    request=Request(lease_s=600.0),
)
TARGET = Target(bucket="out", key="hits/a b.tsv")


def bench() -> Bench:
    found = Bench()
    found.machine.set_functions({"search": FOREIGN})
    return found


@pytest.mark.parametrize(
    ("template", "key", "made"),
    [
        ("{stem}.tsv", "seqs/a.b.fasta", "a.b.tsv"),
        ("x/{key}", "seqs/deep/a.fasta", "x/deep/a.fasta"),
        ("{name}-{job}", "seqs/a", "a-j1"),
        ("{stem}", "seqs/.hidden", ".hidden"),
        ("{key}/{name}", "seqs/{stem}/{job}", "{stem}/{job}/{job}"),  # what is filled in stays
    ],
)
def test_the_key_is_made_of_the_inputs(template: str, key: str, made: str) -> None:
    assert target_key(template, job="j1", key=key, prefix="seqs") == made


def test_the_lease_lasts_for_a_time_and_the_object_is_noted_before_staging() -> None:
    found = bench().read()
    assert found.one(do.OpenAttempt).hold is LeaseLifetime.DEADLINE
    found.on(on.AttemptGranted, attempt=1, granted=granted(), record=record())
    assert found.one(do.StageEnvelope).target == TARGET
    ours = Bench().read()
    assert ours.one(do.OpenAttempt).hold is LeaseLifetime.SESSION


def test_the_event_of_its_object_makes_its_owner_look() -> None:
    found = bench().running()
    found.tell(on.ObjectNoticed(**NOW, bucket="out", key="hits/another.tsv"))
    assert found.actions == ()
    found.tell(on.ObjectNoticed(**NOW, bucket="out", key="hits/a b.tsv"))
    assert found.one(do.ReadResult).target == TARGET
    assert found.one(do.ReadResult).attempt == 1


def test_without_any_event_the_check_looks_and_looks_again_later_each_time() -> None:
    found, pauses = bench().running(), []
    for _ in range(4):
        found.on(on.TimerFired, timer=do.Timer.CHECK)
        assert found.one(do.ReadResult).target == TARGET
        (timer,) = [a for a in found.actions if isinstance(a, do.ArmTimer)]
        pauses.append(timer.in_s)
        found.on(on.ResultRead, result=None)
    budget = Budget()
    assert pauses == [
        min(budget.result_check_s * 2**n, budget.result_check_s_max) for n in (1, 2, 3, 4)
    ]


def test_a_lease_that_ends_without_the_object_is_an_attempt_failed_as_no_object() -> None:
    found = bench().running().ended(EndReason.EXPIRED, "its length is over")
    assert found.one(do.ReadResult).target == TARGET
    found.unresolved(None)
    failure = found.one(do.RecordAttemptFailure)
    assert failure.reason == "NO_OBJECT"
    assert "s3://out/hits/a b.tsv was not written" in failure.detail


def test_the_same_object_is_watched_after_an_adoption() -> None:
    first = bench().read()
    block = first.one(do.OpenAttempt).payload
    heir = bench()
    orphan = record(Step.STAGED, owner=None, block=block)
    heir.on(on.Orphaned, function="search", record=orphan)
    adopted = record(Step.STAGED, block=block)
    heir.on(on.Adopted, record=adopted, granted=granted())
    heir.tell(on.ObjectNoticed(**NOW, bucket="out", key="hits/a b.tsv"))
    assert heir.one(do.ReadResult).target == TARGET


def test_events_of_other_objects_are_read_with_their_keys_decoded() -> None:
    body = json.dumps({"Records": [s3_record("hits/a+b%2B.tsv")]})
    assert read_completion(body, FOREIGN, NOW) == [
        on.ObjectNoticed(**NOW, bucket="in", key="hits/a b+.tsv")
    ]


class Objects:
    """As much of a store as the performer uses here."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[str, str], bytes] = {}
        self.modified: dict[tuple[str, str], datetime] = {}
        self.hidden: set[tuple[str, str]] = set()  #: answered with S3's false 404
        self.now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)

    def write(self, bucket: str, key: str, body: bytes) -> None:
        self.bodies[bucket, key] = body
        self.modified[bucket, key] = self.now

    async def get(self, bucket: str, key: str, **_: object) -> StoredObject:
        body = self.bodies.get((bucket, key))
        if body is None or (bucket, key) in self.hidden:
            raise AppError(ErrorCode.NOT_FOUND, key)
        modified = self.modified.get((bucket, key), self.now).isoformat()
        return StoredObject(
            body=body,
            etag=str(hash(body)),
            version_id=None,
            last_modified=modified,
            size=len(body),
        )

    async def head(self, bucket: str, key: str) -> StoredObject:
        return await self.get(bucket, key)

    async def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> None:
        if if_absent and (bucket, key) in self.bodies:
            raise AppError(ErrorCode.CONFLICT, key)
        self.write(bucket, key, body)


def performer(objects: Objects) -> Performer:
    unused = (
        "queue",
        "functions",
        "orders",
        "scheduler",
        "timers",
        "advance",
    )  # foreign code is started by its event
    ports: dict[str, Any] = {"store": objects, **dict.fromkeys(unused)}
    return Performer(
        **ports,
        clock=SystemClock(),
        budget=Budget(),
        render=lambda _name, _granted: {"connection": {}},
    )


def perform(objects: Objects, action: do.Action) -> on.Event:
    event = asyncio.run(outcome(performer(objects), action))
    assert event is not None
    return event


def looked(objects: Objects) -> Result | None:
    read = do.ReadResult(job=JOB, bucket=FOREIGN.intermediate_bucket, attempt=1, target=TARGET)
    event = perform(objects, read)
    assert isinstance(event, on.ResultRead)
    return event.result


def stage(objects: Objects) -> None:
    found = bench().reserved()
    objects.bodies["in", "seqs/a b.fasta"] = b"ACGT"
    event = perform(objects, found.one(do.StageEnvelope))
    assert isinstance(event, on.EnvelopeStaged), event


@pytest.mark.parametrize("before", [None, b"of an earlier job"])
def test_only_what_was_written_after_staging_is_the_result(before: bytes | None) -> None:
    objects = Objects()
    if before is not None:
        objects.write("out", TARGET.key, before)
    objects.now += timedelta(seconds=5)
    assert looked(objects) is None  # nothing was noted yet: nothing was staged
    stage(objects)
    assert looked(objects) is None
    objects.write("out", TARGET.key, b"hits")
    stage(objects)  # by an heir: what was noted first holds
    result = looked(objects)
    assert result is not None
    assert (result.state, result.attempt) == ("SUCCEEDED", 1)
    assert result.files == [
        {
            "bucket": "out",
            "key": TARGET.key,
            "size": 4,
            "sha256": "",
            "version": None,
            "etag": str(hash(b"hits")),
        }
    ]
    place = FOREIGN.intermediate_bucket
    assert (place, result_key(JOB)) in objects.bodies
    assert (place, before_key(JOB, 1)) in objects.bodies
    assert looked(objects) == result


def test_an_older_object_that_s3_denied_at_first_is_not_the_result() -> None:
    """A bucket whose versioning was just enabled answers with false 404s for some minutes."""
    objects = Objects()
    objects.write("out", TARGET.key, b"of an earlier job")
    objects.hidden.add(("out", TARGET.key))
    objects.now += timedelta(seconds=5)
    stage(objects)
    objects.hidden.clear()
    assert looked(objects) is None
    objects.now += timedelta(seconds=1)
    objects.write("out", TARGET.key, b"hits")
    assert looked(objects) is not None


def test_a_function_that_writes_the_same_bytes_again_has_written() -> None:
    objects = Objects()
    objects.write("out", TARGET.key, b"hits")
    objects.now += timedelta(seconds=5)
    stage(objects)
    objects.write("out", TARGET.key, b"hits")
    assert looked(objects) is not None
