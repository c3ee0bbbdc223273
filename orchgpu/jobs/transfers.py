"""The files of jobs on their ways: inputs that are found and uploaded, outputs that are fetched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from corekit.errors import AppError, ErrorCode
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud, Submitted
from orchgpu.jobs.following import Followed
from orchgpu.jobs.inputs import Input, find_inputs
from orchgpu.jobs.output_folder import OutputFolder
from orchgpu.jobs.outputs import JobOutput, download_output, is_content
from orchgpu.jobs.places import refuse_same_names

T = TypeVar("T")
R = TypeVar("R")


def for_each(
    work: Callable[[T], R], things: Sequence[T], at_once: int, done: Callable[[R], None]
) -> list[R]:
    """The result of `work` for each item, in order; `done` is called as each result arrives.

    After a failure or Ctrl-C nothing new begins; work in progress ends, then the error is raised.
    """
    stop = threading.Event()

    def unless_stopped(thing: T) -> R:
        if stop.is_set():
            raise CancelledError
        try:
            return work(thing)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(at_once) as pool:
        begun = [pool.submit(unless_stopped, thing) for thing in things]
        try:
            for finished in as_completed(begun):
                if not isinstance(finished.exception(), CancelledError):
                    done(finished.result())
        except BaseException:
            stop.set()
            raise
    return [one.result() for one in begun]


def inputs_of(
    cloud: JobCloud, function: Function, given: Sequence[str], note: Callable[[str], None]
) -> list[Input]:
    """The inputs. Raises INVALID for an impossible input, and for two that would be one object.

    `note` gets a sentence about files that the function does not take.
    """
    inputs = find_inputs(cloud, given, function.input_suffixes)
    refuse_same_names(one.name for one in inputs.found)
    if inputs.skipped:
        wanted = " or ".join(function.input_suffixes)
        files = f"{inputs.skipped} file{'s' * (inputs.skipped != 1)}"
        note(f"note: {files} skipped: {function.name} takes only {wanted}")
    return inputs.found


def submit_all(
    cloud: JobCloud,
    function: Function,
    files: Sequence[Input],
    at_once: int,
    uploaded: Callable[[tuple[Submitted, bool]], None],
    *,
    again: bool,
) -> list[Submitted]:
    """Upload inputs, some at a time; those that were uploaded before only if `again`.

    `uploaded` gets each of them, and whether it was uploaded before.
    """

    def submit(source: Input) -> tuple[Submitted, bool]:
        with source.file(cloud) as file:
            before = None if again else cloud.submitted_before(function, file)
            return before or cloud.submit(function, file, now_s=time.time()), before is not None

    done = for_each(submit, files, at_once, uploaded)
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
