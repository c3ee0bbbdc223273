"""Ids by prefix, places to get from and to run from, and what a shell is offered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corekit.ids import JobId
from gpu_scheduler.model import Record, Step
from orchgpu.cli import completing
from orchgpu.cli.main import _status_of, cli
from tests.integration.cli.deployed import finished

ONE, TWO, OTHER = "j" + "a" * 25, "jaaa" + "b" * 22, "jccc" + "d" * 22


def test_a_job_is_found_by_the_beginning_of_its_id(
    s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in (ONE, TWO, OTHER):
        finished(s3, job, f"{job}.out")
    for command in (("job",), ("logs",), ("cost", "--cpu-s", "3", "--memory-mib", "128")):
        assert _status_of((*command, "jaaa")) == 2
        said = capsys.readouterr().err
        assert all(f"\n  {job}  f  ended" in said for job in (ONE, TWO))
        assert OTHER not in said
        assert _status_of((*command, "jeee")) == 3
        assert "whose id begins with 'jeee'" in capsys.readouterr().err
    assert _status_of(("job", "jccc", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["job"]["job_id"] == OTHER
    assert _status_of(("job", "jaaab", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["job"]["job_id"] == TWO
    assert _status_of(("logs", "jaaab", "--json")) == 0
    assert {one["job"] for one in json.loads(capsys.readouterr().out)["lines"]} == {TWO}
    assert _status_of(("cancel", "jccc", "jaaab")) == 4
    assert f"{OTHER} ended before" in capsys.readouterr().err
    assert _status_of(("retry", "jccc")) == 2
    assert f"{OTHER} is SUCCEEDED" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["job", "retry", "cancel"])
def test_too_little_of_an_id_is_refused(
    s3: Any, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _status_of((command, "ja")) == 2
    assert "4 characters" in capsys.readouterr().err


def test_candidates_are_data_too(s3: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for job in (ONE, TWO):
        finished(s3, job, f"{job}.out")
    assert _status_of(("job", "jaaa", "--json")) == 2
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
    assert offered("run", "") == offered("logs", "") == offered("doctor", "f") == ["f"]
    assert offered("dlq", "redrive", "x") == []
    assert offered("deploy", "") == ["fdl.yaml", "flow/"]
    assert offered("plan", "flow/") == ["flow/two.yml"]
    assert offered("rm", "f") == ["fdl.yaml", "flow/", "f"]
    assert offered("deploy", "nowhere/") == []


def test_a_shell_is_offered_nothing_where_nothing_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "ORCHGPU_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("ORCHGPU_HOME", str(tmp_path / "home"))
    assert offered("run", "") == offered("cancel", "j") == []
    assert capsys.readouterr() == ("", "")


def test_a_shell_is_offered_the_jobs_that_a_command_is_for(
    programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHGPU_SCHEDULER", programs.ssgmd().wait_ready()["socket"])
    monkeypatch.setattr(completing, "ANSWER_WITHIN_S", 60.0)
    assert offered("job", "j") == []
    jobs = [job(ONE, Step.RUNNING, None), job(TWO, Step.ENDED, "FAILED")]
    monkeypatch.setattr(completing, "_records", lambda _: jobs)
    assert offered("job", "j") == [ONE, TWO]
    assert offered("cancel", "ja") == [ONE]
    assert offered("retry", "") == offered("dlq", "redrive", "f", "--job", "j") == [TWO]
    assert offered("cancel", "jb") == []


def job(name: str, step: Step, outcome: str | None) -> Record:
    return Record(
        holder=JobId(name), revision=1, owner=None, attempt=1, step=step, strikes=0,
        waiting_since_s=None, handle="", outcome=outcome, block={"function": "f"},
    )  # fmt: skip
