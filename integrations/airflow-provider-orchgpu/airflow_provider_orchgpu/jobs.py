"""The jobs of one task, between its worker, the triggerer and the worker that takes it up again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orchgpu
from corekit.errors import AppError
from orchgpu.core.function import Function
from orchgpu.jobs.cancelling import cancel_job
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import Followed
from orchgpu.jobs.places import Input
from orchgpu.jobs.transfers import inputs_of, submit_all
from orchgpu.jobs.uploaded import Submitted
from orchgpu.mapping import JobResult, result_of

#: One job in Airflow's JSON.
JobNote = dict[str, Any]


def sent(
    cloud: JobCloud, name: str, files: Sequence[str], note: Callable[[str], None], *, again: bool
) -> list[JobNote]:
    """Upload files as `orchgpu.map` does; those whose earlier job failed, too.

    Raises AppError: NOT_FOUND, INVALID before anything is uploaded, UNAVAILABLE.
    """
    function = cloud.function(name)
    inputs = inputs_of(cloud, function, list(files), note)
    return [_sent(cloud, function, source, again=again) for source in inputs]


def _sent(cloud: JobCloud, function: Function, source: Input, *, again: bool) -> JobNote:
    (job,) = submit_all(cloud, function, [source], 1, lambda _: None, again=again)
    if not again:
        results = [cloud.result(function, one) for one in job.job_ids]
        if any(one is not None and one.state != "SUCCEEDED" for one in results):
            (job,) = submit_all(cloud, function, [source], 1, lambda _: None, again=True)
    return {
        "function": function.name,
        "file": str(source.path),
        "key": job.key,
        "job_ids": list(job.job_ids),
        "uploaded_s": job.uploaded_s,
    }


def submitted(cloud: JobCloud, jobs: Sequence[JobNote]) -> list[Submitted]:
    """The jobs as orchgpu follows them. Raises NOT_FOUND for a function that is gone."""
    functions = {name: cloud.function(name) for name in {str(job["function"]) for job in jobs}}
    return [
        Submitted(
            function=functions[job["function"]],
            file=Path(job["file"]),
            key=job["key"],
            job_ids=tuple(job["job_ids"]),
            uploaded_s=job["uploaded_s"],
        )
        for job in jobs
    ]


def results(
    cloud: JobCloud, jobs: Sequence[JobNote], ends: Sequence[Mapping[str, str]], folder: Path | None
) -> list[JobResult]:
    """The results of jobs that are over, with their outputs in the folder.

    Raises orchgpu.JobFailed for the first that failed, then nothing is fetched; CONFLICT.
    """
    found = []
    for job, end in zip(submitted(cloud, jobs), ends, strict=True):
        result = cloud.result(job.function, end["job_id"])
        followed = Followed(submitted=job, **end, result=result, over=True)  # type: ignore[arg-type]
        found.append((followed, Path(job.file)))
    for followed, file in found:
        if not followed.succeeded:
            one = result_of(cloud, followed, file, None)
            raise orchgpu.JobFailed(one.job_id, one.state, one.reason, one.detail, one.log_tail)
    return [result_of(cloud, followed, file, folder) for followed, file in found]


def cancel(cloud: JobCloud, address: str | None, jobs: Sequence[JobNote]) -> None:
    """End jobs as `orchgpu cancel` does; those that have ended stay as they are."""
    for job in jobs:
        with contextlib.suppress(AppError):
            cancel_job(cloud, address, job["job_ids"][0], job["function"], "cancelled by Airflow")
