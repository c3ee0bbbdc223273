"""Completion messages, the envelope's bytes, and the time a job cost us."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import zipfile
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.envelope import Job
from contract.keys import (
    job_id,
    parse_result_key,
    parse_staging_key,
    result_key,
    staging_key,
)
from contract.states import Reason
from corekit.aio.clock import LoopClock
from corekit.aio.vloop import run_virtual
from corekit.values import replace
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.completion import read_completion
from orchgpu.core.routing import InputEvent
from orchgpu.ports import StoredObject
from orchgpu.replica.actions.packing import local_name, pack
from orchgpu.replica.observer import Performed
from orchgpu.replica.own_time import JobTiming, OwnTimes
from tests.unit.orchgpu.jobs import FUNCTION, JOB, NOW, Bench, Now, granted

INPUT = InputEvent(
    bucket="in",
    key="seqs/a b.fasta",
    version_id="v1",
    etag="e1",
    size=3,
    event_name="ObjectCreated:Put",
    event_time="t",
)


def _failure(kind: str, message: str, condition: str = "RetriesExhausted", runs: int = 1) -> str:
    key = staging_key("search", JOB, 2, 9)
    return json.dumps(
        {
            "version": "1.0",
            "requestContext": {
                "requestId": "start-1",
                "condition": condition,
                "approximateInvokeCount": runs,
            },
            "requestPayload": {"Records": [{"s3": {"object": {"key": key}}}]},
            "responseContext": {"statusCode": 200, "functionError": "Unhandled"},
            "responsePayload": {"errorType": kind, "errorMessage": message},
        }
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            _failure("Sandbox.Timedout", "Task timed out after 3.00 seconds"),
            Reason.FUNCTION_TIMEOUT,
        ),
        (
            _failure("Runtime.ExitError", "RequestId: x Error: Runtime exited"),
            Reason.FUNCTION_CRASHED,
        ),
        (_failure("Runtime.ImportModuleError", "no module"), Reason.FUNCTION_ERROR),
        (
            _failure("Sandbox.Timedout", "INIT timed out after 10.00 seconds"),
            Reason.START_TIMED_OUT,
        ),
        (_failure("Runtime.ExitError", "Error: signal: killed"), Reason.FUNCTION_CRASHED),
        (_failure("Runtime.OutOfMemory", "Runtime was out of memory"), Reason.OUT_OF_MEMORY),
        (_failure("", "", "EventAgeExceeded"), Reason.EVENT_EXPIRED),
        (_failure("", "", "EventAgeExceeded", runs=0), Reason.THROTTLED),
        (_failure("", "", "ZeroReservedConcurrency", runs=0), Reason.THROTTLED),
    ],
)
def test_lambdas_failure_records_name_the_attempt_and_why(body: str, reason: Reason) -> None:
    (notice,) = read_completion(body, FUNCTION, NOW)
    assert isinstance(notice, do.RecordFunctionFailure)
    assert (notice.job, notice.attempt, notice.reason) == (JOB, 2, reason)
    assert notice.request == "start-1"


def test_result_events_name_their_job() -> None:
    body = json.dumps(
        {
            "Records": [
                {"s3": {"object": {"key": result_key(JOB)}}},
                {"s3": {"object": {"key": "results/other%2Fdeep.json"}}},
                {"s3": {}},
            ]
        }
    )
    assert read_completion(body, FUNCTION, NOW) == [on.ResultNoticed(**NOW, job=JOB)]


@given(st.text())
def test_any_completion_message_is_read_without_raising(text: str) -> None:
    assert isinstance(read_completion(text, FUNCTION, NOW), list)


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_job_ids_are_stable_short_and_differ_by_version(key: str, version: str) -> None:
    name = job_id("b", key, version, "f")
    assert name == job_id("b", key, version, "f")
    assert len(name) == 26
    assert name != job_id("b", key, version + "x", "f")


def test_keys_are_parsed_back() -> None:
    assert parse_staging_key(staging_key("f", "j", 3, 12)) == ("f", "j", 3, 12, "zip")
    packed = staging_key("f", "j", 3, 12, "tar.gz")
    assert parse_staging_key(packed) == ("f", "j", 3, 12, "tar.gz")
    assert parse_staging_key("staging/f/j/x.zip") is None
    assert parse_result_key(result_key("j")) == "j"
    assert parse_result_key("results/a/b.json") is None


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("a/b c.fasta", "b c.fasta"),
        ("..", "input"),
        ("a/..", "input"),
        ("x/ü.png", "ü.png"),
        ("a\nb", "a_b"),
        ("C:\\x", "C__x"),
        ("d/" + "n" * 300 + ".gz", "n" * 197 + ".gz"),
    ],
)
def test_local_names_are_safe_and_keep_the_ending(key: str, name: str) -> None:
    assert local_name(key) == name


def _pack(body: bytes | None) -> zipfile.ZipFile:
    action = do.StageEnvelope(
        job=JOB, attempt=1, function=FUNCTION, input=INPUT, granted=granted(), replace_etag=None
    )
    stored = StoredObject(
        body=body, etag="e1", version_id="v1", last_modified="t", size=len(body or b"x" * 99)
    )
    data = pack(action, stored, {"middleware": "builtin"}, staged_at_s=5.0, connect_by_s=150.0)
    again = pack(action, stored, {"middleware": "builtin"}, staged_at_s=5.0, connect_by_s=150.0)
    assert data == again
    return zipfile.ZipFile(io.BytesIO(data))


def test_a_small_input_travels_inside() -> None:
    with _pack(b"abc") as archive:
        assert archive.namelist() == ["job.json", "env.json", "input/a b.fasta"]
        job = Job.from_json(archive.read("job.json"))
    assert (job.input_inline, job.input_size, job.fence) == (True, 3, 7)
    assert job.outputs == [{"bucket": "out", "prefix": "hits", "suffix": [], "filter": []}]


def test_a_large_input_travels_by_reference() -> None:
    with _pack(None) as archive:
        assert archive.namelist() == ["job.json", "env.json"]
        job = Job.from_json(archive.read("job.json"))
    assert (job.input_inline, job.input_version) == (False, "v1")


def test_the_metadata_of_the_input_travels_with_the_job_and_is_in_its_provenance() -> None:
    action = do.StageEnvelope(
        job=JOB, attempt=1, function=FUNCTION, input=INPUT, granted=granted(), replace_etag=None
    )
    metadata = {"orchgpu-set": '{"MODE":"fast","API_TOKEN":"abcdefghijklmnop"}', "owner": "lab"}
    stored = StoredObject(
        body=b"", etag="e1", version_id="v1", last_modified="t", size=0, metadata=metadata
    )
    data = pack(action, stored, {}, staged_at_s=5.0, connect_by_s=150.0)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        job = Job.from_json(archive.read("job.json"))
    assert job.metadata == metadata
    assert job.provenance is not None
    parameters = job.provenance["parameters"]
    assert parameters["ORCHGPU_PARAM_MODE"] == "fast"
    assert parameters["ORCHGPU_PARAM_API_TOKEN"] == "***", "what looks like a secret is hidden"


def test_a_packed_tar_is_the_same_on_every_replica_and_opens() -> None:
    function = replace(FUNCTION, envelope="tar.gz")
    action = do.StageEnvelope(
        job=JOB,
        attempt=1,
        function=function,
        input=INPUT,
        granted=granted(),
        replace_etag=None,
        form="tar.gz",
    )
    stored = StoredObject(body=b"abc", etag="e1", version_id="v1", last_modified="t", size=3)
    environment: dict[str, Any] = {"connection": {}}
    data = pack(action, stored, environment, staged_at_s=5.0, connect_by_s=150.0)
    assert data == pack(action, stored, environment, staged_at_s=5.0, connect_by_s=150.0)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        assert archive.getnames() == ["job.json", "env.json", "input/a b.fasta"]
    assert (function.inline, function.envelope_form()) == (True, "tar.gz")


def test_own_time_leaves_out_aws_and_the_function() -> None:
    timing = JobTiming(received_s=0.0, staged_s={1: 1.0}, ended_s={1: 10.0})
    timing.away = [(0.1, 0.5), (0.3, 0.6), (0.9, 1.2), (10.0, 10.5)]
    assert timing.own_s(11.0) == pytest.approx((1.0 - 0.5 - 0.1) + (1.0 - 0.5))


TIMES = st.floats(0, 100)


@given(
    staged_s=st.dictionaries(st.integers(1, 3), TIMES),
    ended_s=st.dictionaries(st.integers(1, 3), TIMES),
    noticed_s=st.none() | TIMES,
    calls=st.lists(st.tuples(TIMES, TIMES), max_size=5),
)
@example({1: 2.0}, {1: 1.0}, None, [])  # its end was noticed before its start was answered
@example({1: 1.0, 2: 50.0}, {1: 40.0, 2: 60.0}, 60.0, [])  # a second attempt
def test_own_time_is_a_part_of_the_time_in_hand(
    staged_s: dict[int, float],
    ended_s: dict[int, float],
    noticed_s: float | None,
    calls: list[tuple[float, float]],
) -> None:
    timing = JobTiming(received_s=0.0, staged_s=staged_s, ended_s=ended_s, noticed_s=noticed_s)
    timing.away = calls
    assert -1e-9 <= timing.own_s(101.0) <= 101.0 + 1e-9


def test_the_time_of_every_attempt_is_its_functions() -> None:
    timing = JobTiming(received_s=0.0, staged_s={1: 1.0, 2: 50.0}, ended_s={1: 40.0, 2: 60.0})
    assert timing.own_s(61.0) == pytest.approx(1 + 10 + 1)


def test_only_the_calls_to_the_cloud_are_taken_out() -> None:
    clock = LoopClock(wall_at_zero_s=0.0)
    finished: dict[str, float] = {}

    async def main() -> None:
        times = OwnTimes(clock, finished.__setitem__)
        bench = Bench().received()
        job = replace(bench.machine.jobs[JOB], received_at_s=clock.monotonic_s())
        reading, asking = bench.one(do.ReadInput), do.ReadRecord(job=JOB)
        finishing = do.FinishJob(
            job=JOB,
            outcome="SUCCEEDED",
            reason="NONE",
            detail="",
            payload=None,
            received_at_s=0.0,
            committed_at_s=0.0,
        )
        for action in (reading, asking, finishing):
            times.starting(job, action)
            began: Now = {"at_s": clock.monotonic_s(), "wall_s": clock.wall_s()}
            await asyncio.sleep(2)
            times.performed(Performed(job, action, on.Finished(**began, job=JOB), began))

    run_virtual(main())
    assert finished == {"search": 4.0}
