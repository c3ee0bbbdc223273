"""Messages of the job queue: odd keys, several records, duplicates, overwrites, junk."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from contract.keys import job_id
from tests.e2e.live import COPY, FunctionSpec, Live, get, s3_record, until
from tests.weather import is_attempt

KEYS = [
    "with space.txt",
    "plus+sign.txt",
    "per%cent.txt",
    "per%20cent.txt",
    "ünïcödé 🧬.txt",
    "nodot",
    "many.dots.in.it.tar.gz",
    "deep/er/path/file.txt",
    "semi;colon&amp.txt",
    "'quote'.txt",
]


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    names = ("keys", "events", "many", "unversioned", "lost")
    functions = {name: FunctionSpec(COPY) for name in names}
    live.deploy(functions | {"by-event": FunctionSpec(COPY, job={"start": "event"})})
    live.start("orchestrator")


def _body(*records: Any) -> str:
    return json.dumps({"Records": list(records)})


def _send(live: Live, function: str, body: str) -> None:
    sqs = live.client("sqs")
    url = sqs.get_queue_url(QueueName=f"{function}-jobs")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody=body)


def test_keys_of_every_kind(live: Live) -> None:
    jobs = {key: live.upload("keys", key, key.encode()) for key in KEYS}
    for key, job in jobs.items():
        result = live.result("keys", job)
        assert result.state == "SUCCEEDED", (key, result)
        (file,) = result.files
        body = live.client("s3").get_object(Bucket=file["bucket"], Key=file["key"])["Body"]
        assert body.read() == key.encode()
    live.quiet("keys")


def test_a_test_event_and_an_empty_one_are_deleted(live: Live) -> None:
    _send(live, "events", json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"}))
    _send(live, "events", json.dumps({"Records": []}))
    live.quiet("events")
    assert live.messages("events", "dlq") == 0


def test_junk_is_quarantined_with_a_reason_and_disturbs_no_job(live: Live) -> None:
    for junk in ("not json", "[]", "{}", json.dumps({"Records": [{"s3": None}]})):
        _send(live, "events", junk)
    job = live.upload("events", "fine.txt")
    assert live.result("events", job).state == "SUCCEEDED"
    until("four dead letters", lambda: live.messages("events", "dlq") == 4)
    live.quiet("events")


def test_two_records_in_one_message_are_two_jobs(live: Live) -> None:
    s3 = live.client("s3")
    made = {}
    for key in ("first.txt", "second.txt"):  # outside the notification's way: sent by hand below
        made[key] = s3.put_object(Bucket="many-in", Key=key, Body=b"x")["VersionId"]
    _send(live, "many", _body(*[s3_record("many-in", k, v) for k, v in made.items()]))
    for key, version in made.items():
        assert live.result("many", job_id("many-in", key, version, "many")).state == "SUCCEEDED"
    live.quiet("many")


def test_a_duplicate_event_runs_once(live: Live) -> None:
    made = live.client("s3").put_object(Bucket="events-in", Key="dup.txt", Body=b"x")
    for _ in range(3):
        _send(live, "events", _body(s3_record("events-in", "dup.txt", made["VersionId"])))
    job = job_id("events-in", "dup.txt", made["VersionId"], "events")
    result = live.result("events", job)
    assert result.state == "SUCCEEDED"
    assert is_attempt(result.attempt, 1)
    live.quiet("events")


def test_an_attempt_whose_event_is_lost_is_started_by_invoke(live: Live) -> None:
    """The notification rule of envelopes is gone; the other function has no other start."""
    s3 = live.client("s3")
    bucket = "events-intermediate"
    rules = s3.get_bucket_notification_configuration(Bucket=bucket)
    rules.pop("ResponseMetadata")
    results = {key: value for key, value in rules.items() if key.startswith("Queue")}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=results)
    try:
        result = live.result("events", live.upload("events", "lost event.txt"))
        assert (result.state, result.reason) == ("SUCCEEDED", "NONE")
        assert is_attempt(result.attempt, 1)
    finally:
        s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=rules)
    by_event = live.result("by-event", live.upload("by-event", "a.txt"))
    assert by_event.state == "SUCCEEDED"
    live.quiet("events", "by-event")


def test_every_version_of_an_overwritten_input_is_a_job_of_its_own(live: Live) -> None:
    jobs = {live.upload("events", "over.txt", text): text for text in (b"one", b"twoo", b"three")}
    sizes = {job: live.result("events", job).files[0]["size"] for job in jobs}
    assert sizes == {job: len(text) for job, text in jobs.items()}
    live.quiet("events")


def test_on_an_unversioned_bucket_the_older_version_is_superseded(live: Live) -> None:
    s3 = live.client("s3")
    s3.create_bucket(Bucket="plain-bucket")
    old = s3.put_object(Bucket="plain-bucket", Key="k.txt", Body=b"old")["ETag"].strip('"')
    new = s3.put_object(Bucket="plain-bucket", Key="k.txt", Body=b"newer")["ETag"].strip('"')
    state = "orchgpu-state-000000000000-us-east-1"
    record = json.loads(
        s3.get_object(Bucket=state, Key="functions/unversioned.json")["Body"].read()
    )
    record["input_bucket"] = "plain-bucket"
    s3.put_object(Bucket=state, Key="functions/unversioned.json", Body=json.dumps(record).encode())
    until(
        "the changed record served",
        lambda: live.log("orchestrator").count("serving unversioned") >= 2,
    )
    for etag in (old, new):
        _send(live, "unversioned", _body(s3_record("plain-bucket", "k.txt", None, etag)))

    def states() -> list[str] | None:
        found = s3.list_objects_v2(Bucket="unversioned-intermediate", Prefix="results/")
        keys = [entry["Key"] for entry in found.get("Contents", ())]
        bodies = [
            s3.get_object(Bucket="unversioned-intermediate", Key=key)["Body"].read() for key in keys
        ]
        names = sorted(json.loads(body)["state"] for body in bodies)
        return names if len(names) == 2 else None

    assert until("both results", states) == ["SUCCEEDED", "SUPERSEDED"]
    live.quiet("unversioned")


def test_a_deleted_input_ends_its_job(live: Live) -> None:
    _send(live, "events", _body(s3_record("events-in", "gone.txt", "no-such-version")))
    job = job_id("events-in", "gone.txt", "no-such-version", "events")
    assert live.result("events", job).state == "INPUT_GONE"
    live.quiet("events")
    shown = json.loads(live.orchgpu("job", job, "--json"))["job"]
    assert (shown["state"], shown["reason"]) == ("INPUT_GONE", "INPUT_DELETED")
    assert shown["input"] == "events-in/gone.txt"
    assert set(shown["times"]) == {"RECEIVED", "COMMITTED", "ENDED"}


def test_a_thousand_and_one_outputs_hide_no_result(live: Live) -> None:
    s3 = live.client("s3")
    for number in range(1001):
        s3.put_object(Bucket="many-out", Key=f"old-{number:04d}.txt", Body=b"")
    job = live.upload("many", "zzz.txt")
    assert live.result("many", job).state == "SUCCEEDED"
    live.quiet("many")


def test_sigterm_hands_back_and_leaves_at_once(live: Live) -> None:
    jobs = [live.upload("events", f"before the stop {n}.txt") for n in range(3)]  # two devices
    assert live.terminate("orchestrator") == 0
    jobs.append(live.upload("events", "after the stop.txt"))
    live.start("orchestrator")
    assert [live.result("events", job).state for job in jobs] == ["SUCCEEDED"] * 4
    live.quiet("events")


WORKFLOW = """\
functions:
  aws:
  - lambda:
      name: flow-first
      init_script: copy.sh
      output: [{path: flow-mid/copies}]
    gpu: {kinds: [cuda], memory: 64, on_unavailable: cpu}
    job: {input: flow-in/texts, envelope: reference}
  - lambda:
      name: flow-second
      init_script: copy.sh
      output: [{path: flow-out}]
    gpu: {kinds: [cpu], memory: 64}
    job: {input: flow-mid/copies}
"""


def test_a_workflow_falls_back_to_a_cpu_where_no_gpu_is_known(live: Live) -> None:
    script = live.path / "copy.sh"
    script.write_text(COPY)
    (live.path / "flow.yaml").write_text(WORKFLOW)
    live.orchgpu("deploy", str(live.path / "flow.yaml"))
    s3 = live.client("s3")
    version = s3.put_object(Bucket="flow-in", Key="texts/a b.txt", Body=b"to the end")["VersionId"]
    first = live.result("flow-first", job_id("flow-in", "texts/a b.txt", version, "flow-first"))
    assert (first.state, first.device["kind"]) == ("SUCCEEDED", "cpu")
    until("the last output", lambda: get(s3, "flow-out", "a b.txt") == b"to the end")
    live.quiet("flow-first", "flow-second")


GROUP = """
functions:
  aws:
  - group: film
    lambda: {name: cut, init_script: cut.sh, input: [{path: film-in}], output: [{path: film-mid/parts}]}
    gpu: {memory: 128, kinds: [cpu]}
    job: {envelope: tar.gz}
  - group: film
    lambda: {name: count, handler: count.words, input: [{path: film-mid/parts}], output: [{path: film-out}]}
    gpu: {memory: 128, kinds: [cpu]}
"""  # noqa: E501 - as users write it
CUT = """#!/bin/sh
head -1 "$INPUT_FILE_PATH" > $TMP_OUTPUT_DIR/first
tail -1 "$INPUT_FILE_PATH" > $TMP_OUTPUT_DIR/last
"""
COUNT = """
from lambda_functions.work import Work

def words(work: Work) -> None:
    (work.output_folder / work.input.name).write_text(str(len(work.input.read_text().split())))
"""


def test_a_group_is_one_job_on_one_lease_from_a_tar_to_its_last_steps_files(live: Live) -> None:
    live.deploy_text("group", GROUP, {"cut.sh": CUT, "count.py": COUNT})
    job = live.upload("film", body=b"one two three\n\nlast line\n")
    result = live.result("film", job)
    assert result.state == "SUCCEEDED", result
    s3 = live.client("s3")
    found = {f["key"]: get(s3, "film-out", f["key"]) for f in result.files}
    assert found == {"first": b"3", "last": b"2"}
    assert {b["Name"] for b in s3.list_buckets()["Buckets"]} >= {"film-in", "film-out"}
    assert "film-mid" not in {b["Name"] for b in s3.list_buckets()["Buckets"]}
    live.quiet("film")


FOREIGN = """
functions:
  aws:
  - lambda: {name: foreign, handler: mine.entry, output: [{path: foreign-out/up}]}
    gpu: {memory: 128, kinds: [cpu]}
    job: {input: {path: foreign-in}, attempts: 1, completion: object, object: "foreign-out/up/{stem}"}
"""  # noqa: E501 - as users write it
#: Code that knows nothing of us but what lies in the envelope.
MINE = """
import io, json, zipfile
import boto3

def entry(event, context):
    place = event["Records"][0]["s3"]
    s3 = boto3.client("s3")
    body = s3.get_object(Bucket=place["bucket"]["name"], Key=place["object"]["key"])["Body"].read()
    with zipfile.ZipFile(io.BytesIO(body)) as envelope:
        job = json.loads(envelope.read("job.json"))
        (name,) = [n for n in envelope.namelist() if n.startswith("input/")]
        text = envelope.read(name)
    if text == b"fail":
        raise ValueError("no good input")
    s3.put_object(Bucket="foreign-out", Key="up/" + name[6:].split(".")[0], Body=text.upper())
"""


def test_a_foreign_functions_job_ends_with_its_object_or_with_lambdas_word(live: Live) -> None:
    live.deploy_text("foreign", FOREIGN, {"mine.py": MINE})
    s3 = live.client("s3")
    s3.put_object(Bucket="foreign-out", Key="up/a", Body=b"of an earlier job")
    older_s = time.monotonic() + 2.5  # S3's times are whole seconds
    until("an object of an earlier job", lambda: time.monotonic() > older_s)
    result = live.result("foreign", live.upload("foreign", "a.txt", b"hello"))
    assert (result.state, result.nonce) == ("SUCCEEDED", "")
    (file,) = result.files
    assert get(s3, file["bucket"], file["key"]) == b"HELLO"
    live.quiet("foreign")
    failed = live.result("foreign", live.upload("foreign", "b.txt", b"fail"))
    assert (failed.state, failed.reason) == ("FAILED", "FUNCTION_ERROR")
    assert "no good input" in failed.detail
    live.quiet("foreign")


def _without_events(live: Live, function: str, key: str) -> str:
    """Upload one input while its bucket has no notification rule; the id of its job."""
    s3, bucket = live.client("s3"), f"{function}-in"
    rules = s3.get_bucket_notification_configuration(Bucket=bucket)
    rules.pop("ResponseMetadata")
    assert rules["QueueConfigurations"]
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={})
    job = live.upload(function, key)
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=rules)
    return job


def test_an_upload_whose_event_never_came_becomes_a_job(live: Live) -> None:
    job = _without_events(live, "lost", "by the orchestrator.txt")
    assert live.result("lost", job).state == "SUCCEEDED"
    live.quiet("lost")
    assert "event_lost" in live.log("orchestrator")


def test_a_command_starts_the_jobs_of_lost_events(live: Live) -> None:
    live.terminate("orchestrator")
    job = _without_events(live, "lost", "by a command.txt")

    def found() -> list[str]:
        listed = json.loads(live.orchgpu("reconcile", "lost", "--dry-run", "--json"))
        assert listed["sent"] is False
        return [one["job_id"] for one in listed["lost"]]

    assert until("an upload that is old enough", found) == [job]
    before = live.messages("lost")  # S3's test event of the rule
    sent = json.loads(live.orchgpu("reconcile", "lost", "--json"))
    assert [one["job_id"] for one in sent["lost"]] == [job]
    assert live.messages("lost") == before + 1
    live.start("orchestrator")
    assert live.result("lost", job).state == "SUCCEEDED"
    live.quiet("lost")
    assert "every upload has its job" in live.orchgpu("reconcile", "lost")


TIMED = """\
functions:
  aws:
  - lambda: {name: timed, init_script: copy.sh, timeout: 30, container: {timeout_threshold: 10},
             input: [{path: timed/in}], output: [{path: timed/out}]}
    schedule: {cron: "* * * * *", input: "at <aws.scheduler.scheduled-time>"}
"""


@pytest.fixture(scope="module")
def timed(live: Live) -> Iterator[None]:
    live.deploy_text("timed", TIMED, {"copy.sh": COPY})
    yield
    live.orchgpu("schedule", "pause", "timed-schedule")


def _timed_jobs(live: Live) -> list[dict[str, Any]]:
    listed = json.loads(live.orchgpu("schedule", "ls", "--json"))["schedules"]
    found = [one["last"] for one in listed if one["name"] == "timed-schedule"]
    return [last for last in found if last and last["state"] == "SUCCEEDED"]


def test_a_run_of_a_schedule_is_a_job(live: Live, timed: None) -> None:
    made = json.loads(live.orchgpu("schedule", "run", "timed-schedule", "--json"))
    result = live.result("timed", made["job"])
    assert result.state == "SUCCEEDED"
    (file,) = result.files
    body = live.client("s3").get_object(Bucket=file["bucket"], Key=file["key"])["Body"].read()
    assert body.decode() == "at " + made["key"].removeprefix("in/timed-schedule-")
    assert until("the job in the list", lambda: _timed_jobs(live))


@pytest.mark.soak
def test_each_minute_is_one_job(live: Live, timed: None) -> None:
    """The cloud's clock is the machine's own; two minutes pass."""
    s3 = live.client("s3")
    times = until(
        "two minutes",
        lambda: len(found := s3.list_objects_v2(Bucket="timed").get("Contents", ())) > 1 and found,
        within_s=180.0,
    )
    keys = [one["Key"] for one in times if one["Key"].startswith("in/")]
    assert len(keys) == len(set(keys))
    for key in keys:
        version = s3.head_object(Bucket="timed", Key=key)["VersionId"]
        assert live.result("timed", job_id("timed", key, version, "timed")).state == "SUCCEEDED"
