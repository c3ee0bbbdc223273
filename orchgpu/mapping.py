"""`orchgpu.map`: a deployed function on many files, from a Python program.

import orchgpu

for done in orchgpu.map("text-recognition", ["sign.png", "menu.png"], output="out"):
    print(done.input, done.state, *done.outputs)
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from contract.parameters import set_text
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.core.runs.workflow import Workflow
from orchgpu.declaration import deployed_name
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import Followed, Tally, follow
from orchgpu.jobs.run_following import ended_runs
from orchgpu.jobs.runs import Fetched, SeenRun, fetch_files, start_runs
from orchgpu.jobs.scheduler import answering_scheduler
from orchgpu.jobs.transfers import OutputFolder, fetch_outputs, inputs_of, submit_all

logger = logging.getLogger("orchgpu.map")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The end of one file's job, or of its run of a workflow."""

    input: Path  #: the file, or the name of an object
    job_id: str  #: or the id of the run
    state: str  #: SUCCEEDED, FAILED, CANCELLED, …
    reason: str  #: NONE for a success
    detail: str  #: one sentence about a failure
    log_tail: str  #: the last lines of the script
    objects: tuple[str, ...]  #: `s3://bucket/key` of each output
    outputs: tuple[Path, ...]  #: the fetched outputs; none without `output`

    @property
    def succeeded(self) -> bool:
        return self.state == "SUCCEEDED"


def map(  # noqa: A001 - what it is named for
    function: str | Callable[..., object],
    files: Iterable[str | PathLike[str]],
    *,
    output: str | PathLike[str] | None = None,
    again: bool = False,
    parameters: Mapping[str, str] | None = None,
    at_once: int = 8,
    timeout_s: float | None = None,
    progress: bool = True,
    scheduler: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
) -> Generator[JobResult, None, None]:
    """Run a deployed function or workflow on files; yields each result as it ends, failures too.

    `function`: its name, or a function with `@orchgpu.function`; `files`: as of `orchgpu run`, at
    most 1000; `output`: folder to fetch outputs into; `again`: also files that were uploaded before
    with the same content; `parameters`: as `--set` of `orchgpu run`; `at_once`: uploads at a time;
    `progress`: a bar on a terminal; the others as of `orchgpu run`. Nothing is uploaded before the
    first result is requested; jobs continue when the iteration is ended early.

    Raises AppError: NOT_FOUND, INVALID before anything is uploaded, UNAVAILABLE, TIMEOUT, and
    CONFLICT for an output that another job has overwritten.
    """
    name = deployed_name(function)
    folder = None if output is None else Path(output)
    given = [fspath(file) for file in files]
    text = _set_text(parameters or {})
    with closing(JobCloud(endpoint_url, region, connections=max(4, at_once))) as cloud:
        deployed = cloud.function_or_workflow(name)
        inputs = inputs_of(cloud, deployed, given, logger.warning)
        if isinstance(deployed, Workflow):
            started = start_runs(
                cloud, deployed, inputs, at_once, lambda _: None, again=again, parameters=text
            )
            for at, run in ended_runs(cloud, started, within_s=timeout_s):
                yield _result_of_run(cloud, run, inputs[at].path, folder)
            return
        address = answering_scheduler(scheduler, logger.info)
        shown = _Shown(len(inputs)) if progress and sys.stderr.isatty() else None
        try:
            uploaded = (lambda _: None) if shown is None else shown.uploaded
            submitted = submit_all(
                cloud, deployed, inputs, at_once, uploaded, again=again, parameters=text
            )
            paths = {one.key: source.path for one, source in zip(submitted, inputs, strict=True)}

            async def followed(
                ended: Callable[[Followed], None], check: Callable[[], None]
            ) -> None:
                def changed(job: Followed) -> None:
                    if shown is not None:
                        shown.changed(job)
                    if job.over:
                        ended(job)

                for job in await follow(
                    cloud, address, submitted, changed, within_s=timeout_s, check=check
                ):
                    ended(job)  # once more: each counts once

            with _in_thread(followed) as jobs:
                for job in jobs:
                    yield result_of(cloud, job, paths[job.submitted.key], folder)
        finally:
            if shown is not None:
                shown.bar.clear()


def _set_text(parameters: Mapping[str, str]) -> str:
    try:
        return set_text(parameters)
    except ValueError as error:
        raise invalid(f"parameters: {error}") from None


class _Shown:
    """The bar of a call on a terminal."""

    def __init__(self, total: int) -> None:
        from corekit.cli.progress import Bar  # programs without a terminal need none of it

        self.bar = Bar(total, quiet=False)
        self._uploaded, self._tally = 0, Tally()

    def uploaded(self, _stored: object) -> None:
        self._uploaded += 1
        self.bar.draw(self._uploaded, " uploaded")

    def changed(self, job: Followed) -> None:
        self.bar.draw(*self._tally.changed(job))


def result_of(cloud: JobCloud, job: Followed, path: Path, folder: Path | None) -> JobResult:
    """The result of a job that is over, with its outputs in the folder.

    Raises CONFLICT for an output that another job has overwritten.
    """
    to = None if folder is None else OutputFolder(path=folder)
    if to is not None:
        _check_own(fetch_outputs(cloud, [job], to, at_once=4), f"job {job.job_id}")
    return JobResult(
        input=path,
        job_id=job.job_id,
        state=str(job.state),
        reason=job.reason,
        detail=job.result.detail if job.result is not None else "",
        log_tail=job.result.log_tail if job.result is not None else "",
        objects=tuple(one.url for one in job.outputs),
        outputs=() if to is None else tuple(file for file, _ in to.files([job])),
    )


def _check_own(overwritten: Sequence[str], wrote: str) -> None:
    """Raises CONFLICT for files that others have replaced."""
    if overwritten:
        text = f"{', '.join(overwritten)}: overwritten since {wrote} wrote it, and not fetched"
        raise AppError(ErrorCode.CONFLICT, text, overwritten=list(overwritten))


def _result_of_run(cloud: JobCloud, run: SeenRun, path: Path, folder: Path | None) -> JobResult:
    """The result of a run that is over, with the files that it left in the folder."""
    failed = next(run.failed_jobs, None)
    fetched = Fetched(files=())
    if folder is not None:
        fetched = fetch_files(cloud, [run], folder, at_once=4)
    _check_own(fetched.overwritten, f"run {run.id}")
    return JobResult(
        input=path,
        job_id=run.id,
        state=run.state.state.value,
        reason=run.state.reason.value,
        detail=run.state.detail,
        log_tail=failed.log_tail if failed is not None else "",
        objects=tuple(f"s3://{file.bucket}/{file.key}" for file in run.files),
        outputs=fetched.files,
    )


class _Stopped(Exception):
    """The consumer takes no further results."""


@contextmanager
def _in_thread(
    followed: Callable[
        [Callable[[Followed], None], Callable[[], None]], Coroutine[None, None, None]
    ],
) -> Iterator[Iterator[Followed]]:
    """The jobs of a coroutine in a thread of its own, each once, as they end."""
    results: queue.SimpleQueue[Followed | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise _Stopped

    def run() -> None:
        try:
            asyncio.run(followed(results.put, check))
        except BaseException as error:
            results.put(error)
        else:
            results.put(None)

    def jobs() -> Iterator[Followed]:
        seen: set[str] = set()
        while (one := results.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            if one.submitted.key not in seen:
                seen.add(one.submitted.key)
                yield one

    thread = threading.Thread(target=run, name="orchgpu.map", daemon=True)
    thread.start()
    try:
        yield jobs()
    finally:
        stop.set()
        thread.join()
