"""Commands about jobs against the embedded cloud in this process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from local_cloud.server.context import Context
from orchgpu.jobs import following, scheduler
from tests.commandline import run
from tests.integration.cli.deployed import STATE, deploy, finished

ROOT = Path(__file__).resolve().parents[3]


def inputs(client: Any) -> list[str]:
    return [entry["Key"] for entry in client.list_objects_v2(Bucket="inputs").get("Contents", [])]


def ids(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(("run", "f", *arguments, "--json")) == 0
    return [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]]


def test_a_repeated_run_uploads_missing_inputs_and_fetches_new_outputs(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    first = ids(capsys, "a", "b")
    assert ids(capsys, "a", "b", "c")[:2] == first
    assert inputs(s3) == ["a", "b", "c"]
    (tmp_path / "b").write_text("other")
    assert [old == new for old, new in zip(first, ids(capsys, "a", "b"), strict=True)] == [
        True,
        False,
    ]
    finished(s3, first[0], "a.out")
    assert ids(capsys, "a", "--wait", "--output", "got") == [first[0]]
    assert (tmp_path / "got" / first[0] / "a.out").is_file()
    assert ids(capsys, "a", "--again") != [first[0]]


def test_an_output_that_another_job_wrote_over_is_not_taken_for_it(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("over")
    (job,) = ids(capsys, "a")
    finished(s3, job, "same.out")
    s3.put_object(Bucket="outputs", Key="same.out", Body=b"another job's")
    assert run(("run", "f", "a", "--output", "got", "--json")) == 4
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert told["error"]["details"] == {"overwritten": ["s3://outputs/same.out"]}
    assert [one["state"] for one in told["jobs"]] == ["SUCCEEDED"]
    assert "overwritten since the job wrote it" in shown.err
    assert not (tmp_path / "got" / job / "same.out").exists()


def test_a_changed_function_runs_the_same_file_again(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("a")
    first = ids(capsys, "a")
    assert ids(capsys, "a") == first
    deploy(s3, "2")
    assert ids(capsys, "a") != first


def test_nothing_is_uploaded_when_the_scheduler_that_should_follow_is_down(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("a")
    assert run(("run", "f", "a", "--wait", "--scheduler", "127.0.0.1:1")) == 8
    assert inputs(s3) == []
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1


def test_an_ended_wait_has_printed_ids_and_states(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("a")
    assert run(("run", "f", "a", "--wait", "--timeout", "50ms")) == 9
    shown = capsys.readouterr()
    assert "uploaded: j" in shown.err
    assert "not received yet" in shown.err
    assert "UPLOADED" not in shown.err


def test_missing_triggers_of_a_function_end_the_wait(
    s3: Any,
    programs: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(following, "UNRECEIVED_S", 0.0)
    address = programs.ssgmd().wait_ready()["socket"]
    monkeypatch.setattr(scheduler, "ANSWER_WITHIN_S", 30.0)
    made = {"name": "f", "bucket": STATE, "created": ["queue/f-jobs"]}
    s3.put_object(Bucket=STATE, Key="deployments/f.json", Body=json.dumps(made).encode())
    (tmp_path / "a").write_text("a")
    assert run(("run", "f", "a", "--wait", "--scheduler", address)) == 3
    said = capsys.readouterr().err
    assert "gone since it was deployed: queue/f-jobs" in said
    assert "--again" in said
    s3.delete_object(Bucket=STATE, Key="deployments/f.json")


def test_ended_jobs_are_listed_while_the_scheduler_is_down(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    down = ("--scheduler", "127.0.0.1:1")
    assert run(("jobs", *down)) == 8  # nothing is known
    assert capsys.readouterr().out == ""
    (tmp_path / "a").write_text("told")
    (job,) = ids(capsys, "a")
    assert run(("job", job, *down)) == 8
    finished(s3, job, "a.out")
    s3.put_object(Bucket="middle", Key=f"results/j{'0' * 25}.json", Body=b"unreadable")
    assert run(("jobs", *down, "--json")) == 8
    told = json.loads(capsys.readouterr().out)
    assert told["error"]["code"] == "unavailable"
    states = {one["job_id"]: (one["function"], one["state"]) for one in told["jobs"]}
    assert states == {job: ("f", "SUCCEEDED"), f"j{'0' * 25}": ("f", "ENDED")}
    assert run(("job", job, *down)) == 0
    shown = capsys.readouterr()
    assert "s3://outputs/a.out" in shown.out
    assert "only the cloud's part is shown" in shown.err
    for what in (job, "f"):
        assert run(("logs", what, *down)) == 0
        assert "127.0.0.1:1" in capsys.readouterr().err


def test_doctor_names_a_function_that_is_none(s3: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(("doctor", "nix", "--json")) == 1
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["cloud"]["good"]
    assert not found["function nix"]["good"]
    assert "no function 'nix' is deployed" in found["function nix"]["message"]


def test_ctrl_c_ends_the_wait_and_names_the_next_step(s3: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("interrupted")
    waiting = subprocess.Popen(
        [sys.executable, "-m", "orchgpu", "run", "f", "a", "--wait"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert waiting.stderr is not None
        assert "jobs are followed by their results: no sched" in waiting.stderr.readline()
        assert "uploaded: j" in waiting.stderr.readline()
        for _ in range(6):  # Python may lose one that comes in the middle of a finalizer
            waiting.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = waiting.communicate(timeout=20)
                break
    finally:
        waiting.kill()
        waiting.wait()
    assert (waiting.returncode, out) == (130, "")
    # asyncio may report a task that had not begun after it
    assert "repeat the command to follow them\n" in err
    assert inputs(s3) == ["a"]


def test_the_logs_of_a_job_are_the_lines_of_its_invocations(
    s3: Any, cloud: Context, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("logged")
    (job,) = ids(capsys, "a")
    finished(s3, job, "a.out")
    mine, other = "a" * 36, "b" * 36
    for number, text in enumerate(
        [
            f"START RequestId: {other} Version: $LATEST",
            "of another job",
            f"END RequestId: {other}",
            f"START RequestId: {mine} Version: $LATEST",
            f"[INFO]\t1970-01-01T00:00:03.000Z\t{mine}\t{job}, attempt 1",
            "hello",
            "bye",
            f"END RequestId: {mine}",
        ]
    ):
        cloud.logs.append("/aws/lambda/f", "stream", float(number), text)
    assert run(("logs", job, "--json")) == 0
    told = [
        one["text"]
        for one in json.loads(capsys.readouterr().out)["lines"]
        if one["where"] == "function"
    ]
    assert told == [
        "user's code starts",
        "user's code ends",
        "result committed",
        f"START RequestId: {mine} Version: $LATEST",
        f"{job}, attempt 1",
        "hello",
        "bye",
        f"END RequestId: {mine}",
    ]
    assert run(("logs", job, "--filter", "bye")) == 0
    assert capsys.readouterr().out.endswith("function      bye\n")
    assert run(("logs", job, "--tail", "1")) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert run(("logs", job, "--follow", "--filter", "hello", "--json")) == 0  # it is over
    assert json.loads(capsys.readouterr().out)["text"] == "hello"


def test_an_unknown_name_is_refused_with_the_known_ones(
    s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(("logs", "nix")) == 3
    assert "function (f)" in capsys.readouterr().err


def test_logs_of_a_name_that_the_cloud_cannot_be_asked_about_are_unavailable(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / "logs").mkdir(parents=True)
    (tmp_path / "home" / "logs" / "cloud.log").touch()
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert run(("logs", "f")) == 8


def test_many_files_are_put_and_fetched_some_at_once(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"{number:02} +%é.txt" for number in range(20)]
    for file in files:
        file.write_text(file.name)
    assert run(("put", *map(str, files), "s3://outputs/new", "--at-once", "3")) == 0
    told = capsys.readouterr()
    placed = [f"s3://outputs/new/{file.name}" for file in files]
    assert told.out.splitlines() == [*placed, "20 files uploaded"]
    assert told.err == ""  # no bar without a terminal
    assert run(("get", "s3://outputs/new/", "got", "--json")) == 0
    fetched = json.loads(capsys.readouterr().out)["objects"]
    assert [one["key"] for one in fetched] == [f"new/{file.name}" for file in files]
    assert all(Path(one["file"]).read_text() == Path(one["key"]).name for one in fetched)


def test_files_that_become_jobs_are_put_with_their_ids(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"put-{number:02}" for number in range(30)]
    for file in files:
        file.write_text(file.name)
    assert run(("put", *map(str, files), "f")) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[20:] == [
        "and 10 more",
        "30 files uploaded, 30 jobs; follow them: orchgpu jobs --function f",
    ]
    assert run(("put", str(files[0]), "f", "--json")) == 0
    (one,) = json.loads(capsys.readouterr().out)["objects"]
    assert one["key"] == "put-00"
    assert ids(capsys, "put-00") == [one["job_id"]], "run resumes what was put"
    assert told[0].startswith("s3://inputs/put-00  j")


def test_files_of_one_name_and_keys_of_one_file_are_refused(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twins = [tmp_path / "x" / "q", tmp_path / "y" / "q"]
    for file in twins:
        file.parent.mkdir()
        file.touch()
    assert run(("put", *map(str, twins), "s3://outputs/")) == 2
    assert inputs(s3) == []
    for key in ("a/b", "a//b"):
        s3.put_object(Bucket="outputs", Key=key, Body=b"")
    assert run(("get", "s3://outputs/", "got")) == 2
    assert "would become one file" in capsys.readouterr().err
    assert not (tmp_path / "got").exists()
