"""Outputs that results name: which of them commands fetch, and into which files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.keys import OUTPUT_JOB
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.core.function import Output
from orchgpu.jobs.following import Followed
from orchgpu.jobs.outputs import JobOutput
from orchgpu.jobs.transfers import OutputFolder
from tests import history_records
from tests.commandline import run
from tests.integration.cli.deployed import deploy, finished
from tests.unit.cli.test_cli_report import ended

FUNCTION = replace(
    history_records.FUNCTION,
    outputs=(Output(bucket="out", prefix="hits"), Output(bucket="more")),
)


def jobs_of(capsys: pytest.CaptureFixture[str], folder: Path, *names: str) -> list[str]:
    """Upload files; the ids of their jobs."""
    for name in names:
        (folder / name).write_text(name)
    assert run(("run", "f", *names, "--json")) == 0
    return [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]]


@pytest.mark.parametrize(
    ("bucket", "key", "declared"),
    [
        ("out", "hits/a", True),
        ("out", "hits/b/a", True),
        ("more", "any", True),
        ("out", "hitsandmore/a", False),
        ("out", "hits", False),
        ("out", "hits/", False),
        ("out", "hits/../a", False),
        ("out", "hits/./a", False),
        ("more", "a//b", False),
        ("more", "/a", False),
        ("more", "", False),
        ("in", "hits/a", False),
        ("", "hits/a", False),
    ],
)
def test_an_output_lies_below_a_declared_one(bucket: str, key: str, declared: bool) -> None:
    output = JobOutput(function=FUNCTION, job="j1", bucket=bucket, key=key)
    assert output.is_declared is declared


@pytest.mark.parametrize(
    ("template", "key", "declared"),
    [
        ("done/{job}.json", "done/j1.json", True),
        ("done/{job}.json", "done/j2.json", False),
        ("done/{stem}.json", "done/a.b.json", True),
        ("done/{stem}.json", "done/x/a.json", False),
        ("done/{key}", "done/x/a.json", True),
        ("done/{key}", "done/../a", False),
        ("done/{name}.x", "done/a.y", False),
    ],
)
def test_the_object_that_ends_a_foreign_job_has_the_key_of_the_definition(
    template: str, key: str, declared: bool
) -> None:
    function = replace(FUNCTION, outputs=(), object_bucket="ends", object_key=template)
    assert JobOutput(function=function, job="j1", bucket="ends", key=key).is_declared is declared
    assert not JobOutput(function=function, job="j1", bucket="out", key=key).is_declared


def test_a_result_that_names_another_object_is_not_followed(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,) = jobs_of(capsys, tmp_path, "a")
    finished(s3, job, "secret.out")
    deploy(s3, "1", outputs=(Output(bucket="outputs", prefix="hits"),))
    assert run(("run", "f", "a", "--output", "got")) == 5
    shown = capsys.readouterr()
    assert (
        f"the result of {job} names s3://outputs/secret.out, which is not an output of f"
        in shown.err
    )
    assert not (tmp_path / "got").exists()


def test_the_object_of_another_job_is_not_taken_although_its_content_is_equal(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,) = jobs_of(capsys, tmp_path, "a")
    finished(s3, job, "same.out")
    s3.put_object(Bucket="outputs", Key="same.out", Body=b"", Metadata={OUTPUT_JOB: "jOther"})
    assert run(("run", "f", "a", "--output", "got")) == 4
    assert "overwritten since the job wrote it" in capsys.readouterr().err


def test_outputs_get_names_that_are_known_before(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job, name in zip(jobs_of(capsys, tmp_path, "a.fa", "b.fa"), "ab", strict=True):
        finished(s3, job, f"hits/{name}.tsv")
    pattern = "{input}-{index:02}{suffix}"
    assert run(("run", "f", "a.fa", "b.fa", "--output", "got", "--name", pattern)) == 0
    assert sorted(one.name for one in (tmp_path / "got").iterdir()) == ["a-00.tsv", "b-00.tsv"]
    assert "-> got/a-00.tsv" in capsys.readouterr().out


def test_two_outputs_of_one_name_are_refused_before_any_is_fetched(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = jobs_of(capsys, tmp_path, "a", "b")
    for job, key in zip(jobs, ("x/same.tsv", "y/same.tsv"), strict=True):
        finished(s3, job, key, body=key.encode())
    assert run(("run", "f", "a", "b", "--output", "got", "--name", "{name}")) == 4
    assert "would both become got/same.tsv: nothing was fetched" in capsys.readouterr().err
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("{stme}.tsv", "no field 'stme'; did you mean 'stem'?"),
        ("all.tsv", "2 jobs need {input} or {job} or {key} or {name} or {stem} in it"),
        ("{stem", "expected '}'"),
        ("{stem:d}", "Unknown format code"),
        ("..", "names no file"),
    ],
)
def test_a_wrong_pattern_is_refused_before_anything_is_uploaded(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str, said: str
) -> None:
    for name in ("never-a", "never-b"):
        (tmp_path / name).write_text("x")
    given = ("never-a",) if pattern == ".." else ("never-a", "never-b")
    assert run(("run", "f", *given, "--output", "got", "--name", pattern)) == 2
    assert said in capsys.readouterr().err
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket="inputs").get("Contents", [])]
    assert "never-a" not in keys


def test_a_pattern_without_a_folder_is_refused(s3: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(("run", "f", "a", "--name", "{stem}")) == 2
    assert "give --output DIR as well" in capsys.readouterr().err


def test_paths_stay_below_the_folder(tmp_path: Path) -> None:
    job: Followed = ended(files=[{"bucket": "o", "key": "../../x", "size": 1, "sha256": ""}])
    folder = OutputFolder(path=tmp_path, pattern="/../{key}")
    assert folder.file(job, 0) == tmp_path / "x"
    with pytest.raises(AppError) as error:
        job.outputs[0].require_declared()
    assert error.value.code is ErrorCode.DENIED
