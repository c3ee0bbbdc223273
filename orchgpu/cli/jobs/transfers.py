"""The files of jobs on their ways: inputs that are found and uploaded, outputs that are fetched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from corekit.cli.screen import counted, echo
from corekit.errors import AppError, ErrorCode
from orchgpu.cli.jobs.batch import Progress, for_each
from orchgpu.cli.jobs.follow import Followed
from orchgpu.cli.jobs.output_folder import OutputFolder
from orchgpu.cli.objects.inputs import Input, find_inputs
from orchgpu.cli.objects.places import refuse_same_names
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud, Submitted
from orchgpu.jobs.outputs import JobOutput, download_output, is_content


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


def fetch_outputs(
    cloud: JobCloud, jobs: list[Followed], output: OutputFolder, at_once: int
) -> list[str]:
    """Fetch the missing outputs; returns those that were overwritten, which are not fetched."""
    wanted = list(output.files(jobs))
    for _, one in wanted:
        one.require_declared()
    missing = [(to, one) for to, one in wanted if not (one.sha256 and is_content(to, one.sha256))]

    def fetch(one: tuple[Path, JobOutput]) -> str | None:
        to, found = one
        try:
            download_output(cloud, found, to)
        except AppError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise
            return found.url
        return None

    changed = for_each(fetch, missing, at_once, lambda _: None)
    return list(dict.fromkeys(url for url in changed if url is not None))
