"""The files of jobs on their ways: inputs that are found and uploaded, outputs that are fetched."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from corekit.cli.screen import counted, echo
from orchgpu.cli.jobs.batch import Progress, for_each
from orchgpu.cli.jobs.follow import Followed
from orchgpu.cli.objects.inputs import Input, find_inputs
from orchgpu.cli.objects.places import file_below, refuse_same_names
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud, Submitted


def inputs_of(cloud: JobCloud, function: Function, given: Sequence[str]) -> list[Input]:
    """The inputs. Raises INVALID for an impossible input, and for two that would be one object."""
    inputs = find_inputs(cloud, given, function.input_suffixes)
    refuse_same_names(one.name for one in inputs.found)
    if inputs.skipped:
        wanted = " or ".join(function.input_suffixes)
        files = counted(inputs.skipped, "file")
        echo(f"note: {files} skipped: {function.name} takes only {wanted}", err=True)
    return inputs.found


def submit_all(
    cloud: JobCloud,
    function: Function,
    files: Sequence[Input],
    at_once: int,
    progress: Progress,
    *,
    again: bool,
) -> list[Submitted]:
    """Upload inputs, some at a time; those that were uploaded before only if `again`."""

    def submit(source: Input) -> tuple[Submitted, bool]:
        with source.file(cloud) as file:
            before = None if again else cloud.submitted_before(function, file)
            return before or cloud.submit(function, file, now_s=time.time()), before is not None

    done = for_each(submit, files, at_once, lambda one: progress.uploaded(one[0], before=one[1]))
    return [job for job, _ in done]


def fetch_outputs(cloud: JobCloud, jobs: list[Followed], output: Path, at_once: int) -> list[str]:
    """Fetch the missing outputs; returns those that were overwritten, which are not fetched."""
    wanted = [
        (file_below(output / job.job_id, str(file["key"])), file)
        for job in jobs
        for file in (job.result.files if job.result is not None else ())
    ]
    missing = [(to, file) for to, file in wanted if not fetched(to, str(file["sha256"]))]

    def fetch(one: tuple[Path, Mapping[str, object]]) -> str | None:
        to, file = one
        bucket, key = str(file["bucket"]), str(file["key"])
        cloud.download(bucket, key, to)
        if fetched(to, str(file["sha256"])):
            return None
        to.unlink()
        return f"s3://{bucket}/{key}"

    changed = for_each(fetch, missing, at_once, lambda _: None)
    return list(dict.fromkeys(url for url in changed if url is not None))


def fetched(file: Path, sha256: str) -> bool:
    """True when the file exists and has this content."""
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == sha256
