"""Ids by prefix, locations of inputs and outputs, and shell completion."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from corekit.ids import JobId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record, Request, Step
from gpu_scheduler.protocol import ops
from local_cloud.server.context import Context
from orchgpu.cli import completing
from orchgpu.cli.main import cli
from orchgpu.core.function import Output
from orchgpu.jobs import places, scheduler
from orchgpu.jobs.records import JobFilter, newest_records
from orchgpu.jobs.scheduler import ask
from tests.commandline import run
from tests.history_records import job_record
from tests.integration.cli.deployed import STATE, deploy, finished

ONE, TWO, OTHER = "j" + "a" * 25, "jaaa" + "b" * 22, "jccc" + "d" * 22


def test_a_job_is_found_by_the_beginning_of_its_id(
    s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in (ONE, TWO, OTHER):
        finished(s3, job, f"{job}.out")
    for command in (("job",), ("logs",), ("cost", "--cpu-s", "3", "--memory-mib", "128")):
        assert run((*command, "jaaa")) == 2
        said = capsys.readouterr().err
        assert all(f"\n  {job}  f  ended" in said for job in (ONE, TWO))
        assert OTHER not in said
        assert run((*command, "jeee")) == 3
        assert "whose id begins with 'jeee'" in capsys.readouterr().err
    assert run(("job", "jccc", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["job"]["job_id"] == OTHER
    assert run(("job", "jaaab", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["job"]["job_id"] == TWO
    assert run(("logs", "jaaab", "--json")) == 0
    assert {one["job"] for one in json.loads(capsys.readouterr().out)["lines"]} == {TWO}
    assert run(("cancel", "jccc", "jaaab")) == 4
    assert f"{OTHER} ended before" in capsys.readouterr().err
    assert run(("retry", "jccc")) == 2
    assert f"{OTHER} is SUCCEEDED" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["job", "retry", "cancel"])
def test_too_little_of_an_id_is_refused(
    s3: Any, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run((command, "ja")) == 2
    assert "4 characters" in capsys.readouterr().err


def test_candidates_are_data_too(s3: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for job in (ONE, TWO):
        finished(s3, job, f"{job}.out")
    assert run(("job", "jaaa", "--json")) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown["error"]["details"] == {"candidates": [ONE, TWO]}


def offered(*typed: str) -> list[str]:
    """What Tab shows after a command line; the last word is the one being typed."""
    from click.shell_completion import ShellComplete

    found = ShellComplete(cli, {}, "orchgpu", "_ORCHGPU_COMPLETE")
    return [item.value for item in found.get_completions(list(typed[:-1]), typed[-1])]


def test_a_shell_is_offered_functions_and_definitions(s3: Any, tmp_path: Path) -> None:
    (tmp_path / "flow").mkdir()
    for name in ("fdl.yaml", "flow/two.yml", "flow/notes.txt", ".hidden.yaml"):
        (tmp_path / name).touch()
    assert offered("logs", "") == offered("doctor", "f") == ["f"]
    assert offered("dlq", "redrive", "x") == []
    assert offered("deploy", "") == ["fdl.yaml", "flow/"]
    assert offered("plan", "flow/") == ["flow/two.yml"]
    assert offered("rm", "f") == offered("run", "f") == ["fdl.yaml", "flow/", "f"]
    assert offered("deploy", "nowhere/") == []


def test_a_shell_is_offered_nothing_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "ORCHGPU_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("ORCHGPU_HOME", str(tmp_path / "home"))
    assert offered("dlq", "ls", "") == offered("cancel", "j") == []
    assert capsys.readouterr() == ("", "")


def test_a_shell_does_not_wait_for_a_cloud_that_is_silent(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "ANSWER_WITHIN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert offered("run", "") == []
        silent.settimeout(0.0)
        silent.accept()[0].close()  # it was asked, once
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.fixture
def recorded(programs: Any, s3: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A scheduler with the records of three jobs of `f`: one lives, two have ended."""
    address: str = programs.ssgmd().wait_ready()["socket"]
    monkeypatch.setenv("ORCHGPU_SCHEDULER", address)
    for module in (completing, scheduler):
        monkeypatch.setattr(module, "ANSWER_WITHIN_S", 60.0)

    async def record(client: SchedulerClient) -> None:
        for job, outcome in ((ONE, "SUCCEEDED"), (TWO, "FAILED")):
            reason = "NONE" if outcome == "SUCCEEDED" else "EXIT_NONZERO"
            op = ops.Finish(
                holder=JobId(job), outcome=outcome, reason=reason, block={"function": "f"}
            )
            await client.ask(op)
        await client.ask(
            ops.Attempt(
                holder=JobId(OTHER),
                n=1,
                revision=0,
                request=Request(count=1),
                block={"function": "f"},
            )
        )

    ask(address, record)
    return address


def test_a_shell_is_offered_the_jobs_that_a_command_is_for(
    recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sorted(offered("job", "j")) == sorted([ONE, TWO, OTHER])
    assert offered("cancel", "j") == offered("wait", "jc") == [OTHER]
    assert offered("retry", "") == offered("dlq", "redrive", "f", "--job", "j") == [TWO]
    assert offered("cancel", "jb") == []
    monkeypatch.setattr(completing, "OFFERED_MAX", 2)
    newest = offered("job", "j")
    assert len(newest) == 2, "the newest ones only"


def test_jobs_of_records_are_shown_by_function_state_and_age(
    recorded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*asked: str) -> list[str]:
        assert run(("jobs", "--json", *asked)) == 0
        return [one["job_id"] for one in json.loads(capsys.readouterr().out)["jobs"]]

    assert shown("--function", "f", "--state", "FAILED") == [TWO]
    assert shown("--state", "received") == [OTHER]
    assert shown("--function", "g") == []
    assert len(shown("--since", "1h", "--limit", "2")) == 2
    assert run(("jobs", "--function", "g")) == 0
    assert capsys.readouterr().out == "no such jobs in the last hour\n"


def test_an_id_is_found_among_records_and_results(
    recorded: str, s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(s3, "jaaac" + "0" * 21, "x.out")
    assert run(("job", "jaaa")) == 2
    said = capsys.readouterr().err
    assert [line.split()[0] for line in said.splitlines()[1:]] == [ONE, TWO, "jaaac" + "0" * 21]
    assert f"{TWO}  f  FAILED" in said
    assert run(("job", "jccc", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["job"]["state"] == "RECEIVED"


def test_the_log_of_a_function_has_its_code_and_names_every_job(
    recorded: str, cloud: Context, s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(s3, ONE, "one.out")
    now_s, request = time.time(), "c" * 36
    for number, text in enumerate(
        [
            f"START RequestId: {request} Version: $LATEST",
            f"[INFO]\tx\t{request}\t{ONE}, attempt 1",
            "one\ntwo",
            f"END RequestId: {request}",
        ]
    ):
        cloud.logs.append("/aws/lambda/f", "named", now_s + number / 1000, text)
    assert run(("logs", "f", "--json", "--tail", "1000")) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    told = {(one["text"], one["job"]) for one in lines}
    assert ("one\ntwo", ONE) in told
    assert {("user's code starts", ONE), ("user's code ends", ONE), ("job FAILED", TWO)} <= told
    assert ("message received", OTHER) in told
    assert run(("logs", "f", "--filter", "two")) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-2:] for line in shown] == [[ONE[:8], "one"], [ONE[:8], "two"]]


def job(name: str, step: Step, outcome: str | None, updated_s: float = 0.0) -> Record:
    block = {"function": "f"}
    return job_record(name, step, outcome=outcome, block=block, updated_s=updated_s)


# ---------------------------------------------------------------------- what `run` is given


def stored_inputs(s3: Any) -> dict[str, bytes]:
    found = s3.list_objects_v2(Bucket="inputs").get("Contents", [])
    return {
        one["Key"]: s3.get_object(Bucket="inputs", Key=one["Key"])["Body"].read() for one in found
    }


def jobs_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(("run", "f", *arguments, "--json")) == 0
    return [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]]


def test_objects_and_all_below_a_prefix_are_inputs(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("in/a", "in/deep/b", "in/", "in2/c"):
        s3.put_object(Bucket="outputs", Key=key, Body=key.encode())
    one = jobs_of(capsys, "s3://outputs/in/a")
    assert stored_inputs(s3) == {"a": b"in/a"}
    both = jobs_of(capsys, "s3://outputs/in")
    assert both[0] == one[0]  # the same content is not uploaded twice
    assert stored_inputs(s3) == {"a": b"in/a", "b": b"in/deep/b"}
    jobs_of(capsys, "s3://outputs/")
    assert sorted(stored_inputs(s3)) == ["a", "b", "c"]
    assert list(tmp_path.glob("orchgpu-run-*")) == []


def test_all_files_below_a_folder_are_inputs(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("in/a", "in/deep/b", "in/.hidden", "in/.git/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert len(jobs_of(capsys, "in")) == 2
    assert stored_inputs(s3) == {"a": b"in/a", "b": b"in/deep/b"}


def test_ignored_files_are_skipped_below_a_folder_and_refused_by_name(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy(s3, "1", suffixes=(".fa", ".fasta"))
    for name in ("in/a.fa", "in/b.txt", "none/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        s3.put_object(Bucket="outputs", Key=name, Body=b"")
    for place in ("in", "s3://outputs/in/"):
        assert run(("run", "f", place)) == 0
        assert "note: 1 file skipped: f takes only .fa or .fasta" in capsys.readouterr().err
    for place in ("none", "s3://outputs/none/"):
        assert run(("run", "f", place)) == 3
        assert "there is no file that ends in .fa or .fasta" in capsys.readouterr().err
    for place in ("in/b.txt", "s3://outputs/in/b.txt"):
        assert run(("run", "f", place)) == 2
        assert "would ignore it" in capsys.readouterr().err
    assert sorted(stored_inputs(s3)) == ["a.fa"]


@pytest.mark.parametrize(
    ("place", "status", "said"),
    [
        ("s3://outputs/nothing", 3, "there is no object s3://outputs/nothing"),
        ("s3://no-such-bucket/x", 3, "NoSuchBucket"),
        ("s3://", 2, "s3://bucket/prefix"),
        ("empty", 3, "below 'empty' there is no file"),
        ("nowhere", 2, "there is no file 'nowhere'"),
        ("twins", 2, "2 of the files are named 'x'"),
    ],
)
def test_an_impossible_input_is_refused_before_any_upload(
    s3: Any, place: str, status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("empty", "twins/a", "twins/b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "twins" / "a" / "x").touch()
    (tmp_path / "twins" / "b" / "x").touch()
    (tmp_path / "good").touch()
    assert run(("run", "f", "good", place)) == status
    assert said in capsys.readouterr().err
    assert stored_inputs(s3) == {}


def test_too_many_files_are_refused(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(places, "FILES_MAX", 2)
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / str(number)).touch()
    assert run(("run", "f", "in")) == 2
    assert "more than 2 files" in capsys.readouterr().err
    assert stored_inputs(s3) == {}


def test_put_of_an_object_names_the_right_command(
    s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(("put", "s3://outputs/a", "f")) == 2
    assert "`orchgpu run FUNCTION s3://outputs/a`" in capsys.readouterr().err


def test_several_jobs_end_in_a_summary_with_the_folder_of_files(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    for number, job_id in enumerate(jobs_of(capsys, "a", "b")):
        finished(s3, job_id, f"{number}.out")
    assert run(("run", "f", "a", "b", "--output", "got")) == 0
    shown = capsys.readouterr().out
    assert "2 jobs: 2 SUCCEEDED; 2 outputs, 0 B, 2 of them fetched into got" in shown
    assert "  outputs/0.out  0 B  -> got/j" in shown


# ---------------------------------------------------------------------- `get` of nothing


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("f", "f has no outputs: its definition names no location for them"),
        ("g", "g has no outputs: no object below s3://outputs/g/"),
        ("s3://outputs/none", "there is no object s3://outputs/none"),
    ],
)
def test_get_without_objects_names_the_location(
    s3: Any, place: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy(s3, "1", outputs=())
    deploy(s3, "1", name="g", outputs=(Output(bucket="outputs", prefix="g"),))
    assert run(("get", place, "got")) == 3
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"orchgpu: {said}\n")
    assert not (tmp_path / "got").exists()
    s3.delete_object(Bucket=STATE, Key="functions/g.json")


# ---------------------------------------------------------------------- `wait`, and some of `jobs`


def test_jobs_that_were_started_before_are_waited_for(
    s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(s3, ONE, "one.out")
    finished(s3, OTHER, "other.out", state="FAILED")
    assert run(("wait", ONE[:20])) == 0
    assert f"{ONE}  inputs/{ONE}  SUCCEEDED" in capsys.readouterr().out
    assert run(("wait", ONE, OTHER[:6], ONE, "--json")) == 1
    told = json.loads(capsys.readouterr().out)["jobs"]
    assert [(one["job_id"], one["state"]) for one in told] == [
        (ONE, "SUCCEEDED"),
        (OTHER, "FAILED"),
    ]
    assert run(("wait", TWO)) == 3


def test_jobs_are_shown_by_function_state_and_age(
    s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*asked: str) -> list[str]:
        run(("jobs", "--scheduler", "127.0.0.1:1", "--json", *asked))
        told = json.loads(capsys.readouterr().out)
        return sorted(one["job_id"] for one in told.get("jobs", ()))

    finished(s3, ONE, "one.out")
    finished(s3, OTHER, "other.out", state="FAILED")
    assert shown("--function", "f", "--since", "1h") == [ONE, OTHER]
    assert shown("--state", "failed") == shown("--state", "FAILED", "--limit", "1") == [OTHER]
    assert shown("--state", "FAILED", "--state", "SUCCEEDED") == [ONE, OTHER]
    assert shown("--function", "g") == shown("--state", "RUNNING") == []
    assert len(shown("--limit", "1")) == 1


def test_records_are_shown_by_function_state_and_age() -> None:
    wanted = JobFilter(frozenset({"f"}), frozenset({"FAILED", "RUNNING"}), 5.0)
    assert wanted.allows(job(ONE, Step.ENDED, "FAILED", 6.0))
    assert wanted.allows(job(ONE, Step.RUNNING, None, 5.0))
    assert not wanted.allows(job(ONE, Step.RUNNING, None, 4.0))
    assert not wanted.allows(job(ONE, Step.ENDED, "SUCCEEDED", 6.0))
    assert not JobFilter(frozenset({"g"}), frozenset(), 0.0).allows(
        job(ONE, Step.ENDED, "FAILED", 6.0)
    )


def test_a_search_among_records_ends_at_a_maximum(recorded: str) -> None:
    def found(scanned_max: int) -> int:
        return len(
            ask(recorded, lambda client: newest_records(client, 10, scanned_max=scanned_max))
        )

    assert [found(scanned_max) for scanned_max in (0, 1, 2, 10)] == [0, 1, 2, 3]
