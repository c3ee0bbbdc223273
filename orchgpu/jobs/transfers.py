"""The files of jobs on their ways: inputs that are found and uploaded, outputs that are fetched.

Fetched outputs have a folder, and a pattern of paths in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path, PurePosixPath
from string import Formatter
from typing import TypeVar

from corekit.errors import AppError, ErrorCode, invalid
from corekit.suggest import one_of_known
from corekit.values import Value
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import Followed
from orchgpu.jobs.outputs import JobOutput, download_output, is_content
from orchgpu.jobs.places import Input, file_below, find_inputs, refuse_same_names
from orchgpu.jobs.uploaded import Submitted, TakesInputs

#: Each output has a file of its own, whatever other jobs write.
OWN_FOLDERS = "{job}/{key}"
#: Field → its meaning. All but `job`, `input` and `index` are of the output's key.
FIELDS = {
    "job": "id of the job",
    "input": "name of its input without the last suffix",
    "index": "number of the output in its job, from 0",
    "key": "key of the output",
    "name": "last part of the key",
    "stem": "name without its last suffix",
    "suffix": "that suffix, with its dot",
}
#: Without one of these, the outputs of several jobs would be one file.
_OF_JOBS = frozenset({"job", "input", "key", "name", "stem"})


class OutputFolder(Value):
    """A folder for outputs, and their paths in it."""

    path: Path
    pattern: str = OWN_FOLDERS

    def check(self, jobs: int) -> None:
        """Raise INVALID for a pattern that is wrong, or too little for this number of jobs."""
        used = [field for _, field, _ in self._parts() if field is not None]
        for field in used:
            if field not in FIELDS:
                raise invalid(f"--name: no field {field!r}{one_of_known(field, FIELDS)}")
        if jobs > 1 and _OF_JOBS.isdisjoint(used):
            needed = " or ".join(f"{{{name}}}" for name in sorted(_OF_JOBS))
            raise invalid(f"--name {self.pattern!r}: {jobs} jobs need {needed} in it")
        file_below(self.path, self._render(dict.fromkeys(FIELDS, "x") | {"index": 0}))

    def files(self, jobs: Sequence[Followed]) -> Iterator[tuple[Path, JobOutput]]:
        """The file of each output. Raises CONFLICT for two outputs that would be one file."""
        taken: dict[Path, JobOutput] = {}
        for job in jobs:
            for index, output in enumerate(job.outputs):
                file = self.file(job, index)
                other = taken.setdefault(file, output)
                if other != output and not (other.sha256 and other.sha256 == output.sha256):
                    text = f"{other.url} of {other.job} and {output.url} of {output.job} would both"
                    text += (
                        f" become {file}: nothing was fetched; --name {OWN_FOLDERS!r} keeps both"
                    )
                    raise AppError(ErrorCode.CONFLICT, text)
                yield file, output

    def file(self, job: Followed, index: int) -> Path:
        """The file of one output: always below the folder."""
        output = job.outputs[index]
        name = PurePosixPath(output.key)
        values = {
            "job": job.job_id,
            "input": PurePosixPath(job.submitted.file.name).stem,
            "index": index,
            "key": output.key,
            "name": name.name,
            "stem": name.stem,
            "suffix": name.suffix,
        }
        return file_below(self.path, self._render(values))

    def _render(self, values: dict[str, object]) -> str:
        try:
            return "".join(
                text + ("" if field is None else format(values[field], spec))
                for text, field, spec in self._parts()
            )
        except (ValueError, TypeError) as error:
            raise invalid(f"--name {self.pattern!r}: {error}") from None

    def _parts(self) -> list[tuple[str, str | None, str]]:
        try:
            parts = Formatter().parse(self.pattern)
            return [(text, field, spec or "") for text, field, spec, _ in parts]
        except ValueError as error:
            raise invalid(f"--name {self.pattern!r}: {error}") from None


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
    cloud: JobCloud, function: TakesInputs, given: Sequence[str], note: Callable[[str], None]
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
    parameters: str = "",
) -> list[Submitted]:
    """Upload inputs, some at a time; those that were uploaded before only if `again`.

    `uploaded` gets each of them, and whether it was uploaded before; `parameters`: of all of them,
    as `contract.parameters.set_text` writes them.
    """

    def submit(source: Input) -> tuple[Submitted, bool]:
        with source.file(cloud) as file:
            before = None if again else cloud.submitted_before(function, file, parameters)
            now_s = time.time()
            made = before or cloud.submit(function, file, now_s=now_s, parameters=parameters)
            return made, before is not None

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
