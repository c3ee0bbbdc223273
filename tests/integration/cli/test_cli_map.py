"""`orchgpu.map` on a deployed function that nobody serves: the test ends its jobs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import orchgpu
from corekit.errors import AppError
from orchgpu.jobs.cloud import JobCloud
from tests.integration.cli.deployed import finished


def written(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_text(name)
    return [folder / name for name in names]


def jobs_of(files: list[Path]) -> list[str]:
    """Upload files; the ids of their jobs."""
    cloud = JobCloud()
    function = cloud.function("f")
    return [cloud.submit(function, file, now_s=0.0).job_ids[0] for file in files]


def test_results_come_as_jobs_end_failures_too(s3: Any, tmp_path: Path) -> None:
    files = written(tmp_path, "a", "b", "c")
    jobs = jobs_of(files)
    finished(s3, jobs[1], "b.out")
    found = orchgpu.map("f", files, output=tmp_path / "got")
    first = next(found)
    assert (first.input, first.job_id, first.succeeded) == (files[1], jobs[1], True)
    assert first.objects == ("s3://outputs/b.out",)
    assert [path.name for path in first.outputs] == ["b.out"]
    assert first.outputs[0].is_file()
    finished(s3, jobs[2], "c.out", state="FAILED")
    finished(s3, jobs[0], "a.out")
    states = {one.input.name: one.state for one in found}
    assert states == {"a": "SUCCEEDED", "c": "FAILED"}


def test_an_iteration_that_ends_early_leaves_no_thread(s3: Any, tmp_path: Path) -> None:
    files = written(tmp_path, "a", "b")
    finished(s3, jobs_of(files)[0], "a.out")
    found = orchgpu.map("f", files)
    assert next(found).outputs == (), "no folder was named"
    found.close()
    assert "orchgpu.map" not in [thread.name for thread in threading.enumerate()]


def test_jobs_that_do_not_end_in_time_raise(s3: Any, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="not over after"):
        list(orchgpu.map("f", written(tmp_path, "a"), timeout_s=0.05))


def test_an_overwritten_output_is_a_conflict(s3: Any, tmp_path: Path) -> None:
    files = written(tmp_path, "a")
    finished(s3, jobs_of(files)[0], "a.out")
    s3.put_object(Bucket="outputs", Key="a.out", Body=b"another job's")
    with pytest.raises(AppError, match=r"s3://outputs/a\.out: overwritten"):
        list(orchgpu.map("f", files, output=tmp_path / "got"))


@pytest.mark.parametrize(
    ("function", "names", "options", "message"),
    [
        ("none", ["a"], {}, "no function 'none' is deployed"),
        ("f", ["missing"], {}, "missing"),
        ("f", ["a"], {"scheduler": "127.0.0.1:1"}, "127.0.0.1:1"),
    ],
)
def test_nothing_is_uploaded_when_it_cannot_begin(
    s3: Any,
    tmp_path: Path,
    function: str,
    names: list[str],
    options: dict[str, Any],
    message: str,
) -> None:
    written(tmp_path, "a")
    with pytest.raises(AppError, match=message):
        list(orchgpu.map(function, [tmp_path / name for name in names], **options))
    assert s3.list_objects_v2(Bucket="inputs").get("Contents", []) == []


def test_a_function_without_the_decorator_has_no_name() -> None:
    with pytest.raises(TypeError, match=r"nor has it @orchgpu\.function"):
        list(orchgpu.map(len, ["a"]))
