"""Commands about runs, over the embedded cloud; the test writes what replicas write."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import boto3
import pytest

import orchgpu
from contract.keys import result_key
from contract.result import Result
from contract.run import cancel_key, retry_key, run_key, run_result_key, started_key
from contract.states import JobState, RunState, StepState
from corekit.decode import decode_json, encode_json
from corekit.errors import AppError
from orchgpu.core.routing import InputEvent
from orchgpu.core.runs.facts import Facts
from orchgpu.core.runs.records import Cancel, EndedStep, Frozen, InputFile, RunResult
from orchgpu.core.runs.state import state_of
from orchgpu.core.runs.workflow import Workflow
from tests.commandline import done
from tests.integration.cli.deployed import STATE

FILE = """\
functions:
  aws:
  - lambda: {name: prepare, init_script: s.sh, input: [{path: wf-in/a}], output: [{path: wf-mid/b}]}
  - lambda: {name: left, init_script: s.sh, input: [{path: wf-mid/b, each: true}], output: [{path: wf-mid/c}]}
  - lambda: {name: right, init_script: s.sh, input: [{path: wf-mid/b, suffix: [.never]}], output: [{path: wf-mid/c}]}
  - lambda: {name: join, init_script: s.sh, input: [{path: wf-mid/c}], output: [{path: wf-out/d}]}
  - lambda: {name: look, init_script: s.sh, input: [{path: wf-img/a}], output: [{path: wf-out/t, suffix: [.txt]}, {path: wf-mid/l, suffix: [.png]}]}
  - lambda: {name: read, init_script: s.sh, input: [{path: wf-mid/l}], output: [{path: wf-out/t}]}
workflows:
  films: {steps: [prepare, left, right, join], deadline: 1h}
  cascade: {steps: [look, read], deadline: 1h}
"""  # noqa: E501  (one function per line)


class Replica:
    """Writes the objects of runs, as an orchestrator does."""

    def __init__(self, s3: Any, workflow: str = "films") -> None:
        self._s3 = s3
        record = s3.get_object(Bucket=STATE, Key=f"workflows/{workflow}.json")["Body"].read()
        self.workflow = decode_json(Workflow, record)
        self.bucket = self.workflow.bucket

    def put(self, key: str, body: bytes, bucket: str = "") -> dict[str, str]:
        """Store an object; its pins, as a result names them."""
        made = self._s3.put_object(Bucket=bucket or self.bucket, Key=key, Body=body)
        pins = {"version": made.get("VersionId"), "etag": made["ETag"].strip('"')}
        return {name: pin for name, pin in pins.items() if pin}

    def get(self, key: str) -> bytes:
        body: bytes = self._s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return body

    def begin(self, run: str, key: str) -> None:
        self.run = run
        bucket = self.workflow.input_bucket
        head = self._s3.head_object(Bucket=bucket, Key=key)
        source = InputEvent(
            bucket=bucket,
            key=key,
            version_id=head["VersionId"],
            etag=head["ETag"].strip('"'),
            size=head["ContentLength"],
            event_name="ObjectCreated:Put",
            event_time="2026-01-01T00:00:00.000Z",
        )
        frozen = Frozen(
            run=run,
            workflow=self.workflow,
            input=source,
            stored_at_s=time.time() - 5,
            frozen_at_s=time.time(),
        )
        self.put(run_key(run), encode_json(frozen))

    def jobs(self, run: str, facts: dict[str, Any], step: str) -> list[str]:
        """The ids of a step's jobs, once those that feed it have ended."""
        frozen = decode_json(Frozen, self.get(run_key(run)))
        state = state_of(Facts(frozen=frozen, wall_s=time.time(), **facts))
        return [job.id for job in state.steps[step].jobs]

    def end(self, step: str, job: str, *keys: str, state: JobState = JobState.SUCCEEDED) -> Result:
        """The result of a job of a step, and the files that it names."""
        files = []
        for key in keys:
            bucket = "wf-out" if key.startswith(("d/", "t/")) else "wf-mid"
            pins = self.put(key, f"text of {step}".encode(), bucket)
            files.append({"bucket": bucket, "key": key, **pins})
        result = Result(
            job_id=job,
            state=state.value,
            reason="NONE" if state is JobState.SUCCEEDED else "SCRIPT_FAILED",
            attempt=1,
            nonce="n",
            exit_code=0,
            files=[{**one, "size": 4, "sha256": ""} for one in files],
            times={"EStart": 10.0, "EEnd": 12.5},
            log_tail="",
            device={"host": "h", "kind": "cpu", "model": ""},
            ended_at_s=time.time(),
        )
        self.put(started_key(self.run, 0, step), b"{}")
        self.put(result_key(job), result.to_json(), f"{step}-intermediate")
        return result

    def finish(self, run: str, state: RunState, steps: dict[str, StepState], key: str = "") -> None:
        last = InputFile(step="join", bucket="wf-out", key=key, size=4, name=Path(key).name)
        result = RunResult(
            run=run,
            workflow="films",
            state=state,
            reason="NONE" if state is RunState.SUCCEEDED else "SCRIPT_FAILED",
            detail="",
            retries=0,
            started_at_s=time.time() - 5,
            ended_at_s=time.time() + 60,  # by a clock that is ahead of the user's
            steps=tuple(EndedStep(name=name, state=one) for name, one in steps.items()),
            files=(last,) if key else (),
        )
        self.put(run_result_key(run), encode_json(result))


@pytest.fixture
def replica(s3: Any, tmp_path: Path) -> Replica:
    (tmp_path / "s.sh").write_text("#!/bin/sh\n")
    (tmp_path / "s.sh").chmod(0o755)
    (tmp_path / "films.yaml").write_text(FILE)
    deployed = done(["deploy", "films.yaml"])
    assert deployed.exit_code == 0, deployed.output
    return Replica(s3)


def _started(tmp_path: Path, name: str) -> str:
    file = tmp_path / name
    file.write_text(f"the film {name}")
    told = done(["run", "films", str(file), "--json"])
    assert told.exit_code == 0, told.output
    (run,) = json.loads(told.stdout)["runs"]
    assert run["input"] == f"wf-in/a/{name}"
    return str(run["run_id"])


def test_a_run_is_followed_through_its_steps(replica: Replica, tmp_path: Path) -> None:
    run = _started(tmp_path, "one.mp4")
    assert _started(tmp_path, "one.mp4") == run, "the same content is the same run"
    assert done(["job", run]).exit_code == 3, "no orchestrator has begun it"
    replica.begin(run, "a/one.mp4")
    seen = json.loads(done(["job", run, "--json"]).stdout)["run"]
    assert (seen["state"], seen["over"]) == ("RUNNING", False)
    states = {step["name"]: step["state"] for step in seen["steps"]}
    assert states == {"prepare": "READY", "left": "BLOCKED", "right": "BLOCKED", "join": "BLOCKED"}
    assert [step["after"] for step in seen["steps"]] == [
        [],
        ["prepare"],
        ["prepare"],
        ["left", "right"],
    ]

    (job,) = (one["job_id"] for one in seen["steps"][0]["jobs"])
    replica.put(started_key(run, 0, "prepare"), b"{}")
    replica.end("prepare", job, "b/1.png", "b/2.png")
    seen = json.loads(done(["job", run[:8], "--json"]).stdout)["run"]
    left = next(step for step in seen["steps"] if step["name"] == "left")
    assert [one["inputs"][0]["key"] for one in left["jobs"]] == ["b/1.png", "b/2.png"]
    for number, one in enumerate(left["jobs"]):
        replica.end("left", one["job_id"], f"c/{number}.txt")
    told = done(["job", run]).stdout
    assert "prepare  [DONE  2.5 s  cpu on h]" in told
    assert "left  [DONE  2/2 jobs  2.5 s  cpu on h]" in told
    assert "right  [SKIPPED]" in told

    join = _step(run, "join")
    assert [one["key"] for one in join["jobs"][0]["inputs"]] == ["c/0.txt", "c/1.txt"]
    replica.end("join", join["jobs"][0]["job_id"], "d/one.csv")
    steps = dict.fromkeys(("prepare", "left", "join"), StepState.DONE)
    replica.finish(run, RunState.SUCCEEDED, {**steps, "right": StepState.SKIPPED}, "d/one.csv")
    ran = done(["run", "films", str(tmp_path / "one.mp4"), "--wait", "--output", "out"])
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "out/one.mp4/join/one.csv").read_text() == "text of join"
    assert "SKIPPED" in ran.stderr
    (ended,) = orchgpu.map("films", [tmp_path / "one.mp4"], output="mapped", timeout_s=30)
    assert (ended.job_id, ended.succeeded, ended.objects) == (run, True, ("s3://wf-out/d/one.csv",))
    assert ended.outputs == (Path("mapped/one.mp4/join/one.csv"),)
    assert done(["wait", run]).exit_code == 0
    assert "job SUCCEEDED" not in done(["logs", run]).stderr
    assert "SUCCEEDED" in done(["jobs", "--workflow", "films"]).stdout
    drawn = done(["fdl", "graph", "--run", run, "--format", "mermaid"]).stdout
    assert '"join<br/>DONE  2.5 s  cpu on h"' in drawn


def test_of_two_steps_that_wrote_one_object_the_last_has_its_file(
    replica: Replica, s3: Any, tmp_path: Path
) -> None:
    file = tmp_path / "one.png"
    file.write_text("an image")
    cascade = Replica(s3, "cascade")
    (run,) = json.loads(done(["run", "cascade", str(file), "--json"]).stdout)["runs"]
    cascade.begin(run["run_id"], "a/one.png")
    for step, keys in (("look", ("t/one.txt", "l/one.png")), ("read", ("t/one.txt",))):
        (job,) = _step(run["run_id"], step)["jobs"]
        cascade.end(step, job["job_id"], *keys)
    steps = dict.fromkeys(("look", "read"), StepState.DONE)
    cascade.finish(run["run_id"], RunState.SUCCEEDED, steps)
    command = ["run", "cascade", str(file), "--wait", "--output", "out", "--json"]
    ran = done(command)
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["fetched"] == ["out/one.png/read/one.txt"]
    assert (tmp_path / "out/one.png/read/one.txt").read_text() == "text of read"
    assert not (tmp_path / "out/one.png/look").exists()
    cascade.put("t/one.txt", b"of another job", "wf-out")
    ran = done(command)
    assert ran.exit_code == 4, ran.output
    shown = json.loads(ran.stdout)
    assert shown["error"]["details"] == {"overwritten": ["s3://wf-out/t/one.txt"]}
    with pytest.raises(AppError, match=r"s3://wf-out/t/one\.txt: overwritten since run"):
        list(orchgpu.map("cascade", [file], output="mapped", timeout_s=30))


def test_parameters_are_stored_with_the_input_and_another_value_is_another_run(
    replica: Replica, tmp_path: Path
) -> None:
    file = tmp_path / "set.mp4"
    file.write_text("the film set.mp4")

    def started(*options: str) -> str:
        told = done(["run", "films", str(file), "--json", *options])
        assert told.exit_code == 0, told.output
        return str(json.loads(told.stdout)["runs"][0]["run_id"])

    plain, fast = started(), started("--set", "MODE=fast", "--set", "Q=a=b é")
    assert plain != fast
    assert started("--set", "Q=a=b é", "--set", "MODE=fast") == fast, "the same run again"
    head = boto3.client("s3").head_object(Bucket="wf-in", Key="a/set.mp4")
    assert json.loads(head["Metadata"]["orchgpu-set"]) == {"MODE": "fast", "Q": "a=b é"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--set", "MODE"), "--set 'MODE': write NAME=VALUE"),
        (("--set", "A=1", "--set", "A=2"), "--set A: given twice"),
        (("--set", "a-b=1"), "--set: 'a-b' is not a name of a parameter"),
        (("--set", f"A={'x' * 2000}"), "--set: the parameters are 2008 bytes of JSON"),
    ],
)
def test_a_parameter_that_is_none_is_refused_before_any_upload(
    replica: Replica, tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    told = done(["run", "films", str(tmp_path / "absent.mp4"), *options])
    assert (told.exit_code, why in " ".join(told.stderr.split())) == (2, True), told.stderr


def _step(run: str, name: str) -> dict[str, Any]:
    seen = json.loads(done(["job", run, "--json"]).stdout)["run"]
    return next(step for step in seen["steps"] if step["name"] == name)


def test_cancel_and_retry_are_objects_and_an_advance(replica: Replica, tmp_path: Path) -> None:
    run = _started(tmp_path, "two.mp4")
    replica.begin(run, "a/two.mp4")
    early = done(["retry", run])
    assert (early.exit_code, f"{run} is not over: it is RUNNING" in early.stderr) == (4, True)
    assert done(["cancel", run, "--reason", "wrong film"]).exit_code == 0
    assert done(["cancel", run]).exit_code == 0, "it may be repeated"
    assert decode_json(Cancel, replica.get(cancel_key(run))).detail == "cancelled: wrong film"
    blocked = dict.fromkeys(("prepare", "left", "right", "join"), StepState.CANCELLED)
    replica.finish(run, RunState.FAILED, blocked)
    late = done(["cancel", run])
    assert (late.exit_code, "ended before it could be cancelled: FAILED" in late.stderr) == (
        4,
        True,
    )
    assert done(["wait", run]).exit_code == 1
    unknown = done(["retry", run, "--from", "lft"])
    assert (unknown.exit_code, "films has no step 'lft'" in unknown.stderr) == (2, True)
    assert done(["retry", run, "--from", "left"]).exit_code == 0
    asked = json.loads(replica.get(retry_key(run, 1)))
    assert asked["from"] == "left"
    assert asked["at_s"] == json.loads(replica.get(run_result_key(run)))["ended_at_s"]
    assert json.loads(done(["job", run, "--json"]).stdout)["run"]["over"] is False
    assert done(["cancel", run]).exit_code == 0
    cancel = decode_json(Cancel, replica.get(cancel_key(run)))
    assert cancel.at_s > asked["at_s"], "a cancel that is not newer than the retry does not count"
    assert json.loads(done(["job", run, "--json"]).stdout)["run"]["cancelled"] is True
    advances = [json.loads(body) for body in _messages()]
    named = [one["orchgpu"]["advance"]["run"] for one in advances if "orchgpu" in one]
    assert named.count(run) == 4
    tokens = [one for one in advances if one.get("orchgpu", {}).get("advance", {}).get("token")]
    assert len(tokens) == 1, "a retried run has a message that stays until its end, as a new one"


def _messages() -> list[str]:
    sqs, bodies = boto3.client("sqs"), []
    url = sqs.get_queue_url(QueueName="films-runs")["QueueUrl"]
    while found := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        bodies += [one["Body"] for one in found]
    sqs.close()
    return bodies


def test_words_that_name_nothing_are_refused(replica: Replica) -> None:
    assert replica.workflow.name == "films"
    none = done(["job", "r123456"])
    assert (none.exit_code, "there is no run 'r123456'" in none.stderr) == (3, True)
    wrong = done(["jobs", "--workflow", "f"])
    assert "'f' is a function, not a workflow: write --function f" in wrong.stderr
    job = done(["retry", "j123456789", "--from", "left"])
    assert "--from is for runs of workflows" in job.stderr
    removed = done(["rm", "left"])
    assert "left: a step of the workflow 'films'; remove that first" in removed.stderr
    gone = done(["rm", "films.yaml", "--force"])
    assert gone.exit_code == 0, gone.output
