"""`orchgpu jobs --watch`: a table redrawn in place, a line per change at a pipe, JSON lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

from contract.states import JobState
from corekit.aio.output import pause
from corekit.cli.live import LiveScreen
from corekit.cli.screen import Coloured, Line, echo, echo_json, redrawable
from corekit.cli.text import padded, printable
from corekit.cli.times import shown_time
from corekit.errors import AppError
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record
from orchgpu.cli.jobs.lookup import shown_input
from orchgpu.jobs.live.feed import JobsFeed
from orchgpu.jobs.scheduler import NO_ANSWER

#: A job as JSON, in the form of `orchgpu jobs --json`.
Entry = Mapping[str, object]
#: The jobs of these records that are shown, with the reasons of their waits.
ReadJobs = Callable[[SchedulerClient, Sequence[Record]], Awaitable[Sequence[Entry]]]
#: The reasons are read again after so long without a push.
READ_EVERY_S = 2.0
_STATE_WIDTH = max(len(state) for state in JobState)


class Display(Protocol):
    """A form of the output; `error` is the scheduler's while it does not answer."""

    def show(self, jobs: Sequence[Entry], error: AppError | None) -> None: ...


class JobChanges:
    """The jobs that changed since they were last read."""

    def __init__(self) -> None:
        self._before: dict[str, object] = {}

    def fresh(self, jobs: Sequence[Entry]) -> list[Entry]:
        """The new and changed jobs, the oldest change first; all of them at first."""
        now = {str(job["job_id"]): _state(job) for job in jobs}
        changed = [job for job in jobs if self._before.get(str(job["job_id"])) != _state(job)]
        self._before = now
        return sorted(changed, key=lambda job: float(str(job["updated_s"])))


def _state(job: Entry) -> object:
    return job["state"], job["reason"], job["attempt"]


class ChangedLines:
    """One line per changed job, for a pipe or a file; or one JSON object."""

    def __init__(self, *, as_json: bool) -> None:
        self._changes = JobChanges()
        self._as_json = as_json
        self._failed = False

    def show(self, jobs: Sequence[Entry], error: AppError | None) -> None:
        """Print what changed; a scheduler that does not answer is reported once."""
        if error is not None and not self._failed:
            if self._as_json:
                echo_json({"scheduler_error": error.as_json()}, indent=None)
            echo(f"orchgpu: {error.message}; it is asked again", err=True)
        self._failed = error is not None
        for job in self._changes.fresh(jobs) if error is None else ():
            if self._as_json:
                echo_json({"job": job}, indent=None)
            else:
                echo(*_line(job))


def _line(job: Entry) -> Line:
    """Time, id, function, state, reason, attempt and input of one job."""
    state = str(job["state"])
    why = f"  {job['reason']}" if job["reason"] != "NONE" else ""
    rest = f"{why}  attempt {job['attempt']}  {printable(shown_input(job))}"
    when = shown_time(float(str(job["updated_s"])))
    names = f"{when}  {job['job_id']}  {printable(str(job['function'] or '-'))}  "
    return (names, Coloured(state), padded("", _STATE_WIDTH - len(state)) + rest)


class LiveTable:
    """The table in place on a terminal, with the counts of states above it."""

    def __init__(
        self, screen: LiveScreen, table: Callable[[Sequence[Entry]], Sequence[Line]]
    ) -> None:
        self._screen = screen
        self._table = table

    def show(self, jobs: Sequence[Entry], error: AppError | None) -> None:
        """Redraw everything."""
        counts = Counter(str(job["state"]) for job in jobs)
        words = "  ".join(f"{state} {number}" for state, number in sorted(counts.items()))
        head = error.message if error is not None else words or "no jobs"
        self._screen.show([(f"{printable(head)}  (Ctrl-C ends)",), (), *self._table(jobs)])


def display(
    table: Callable[[Sequence[Entry]], Sequence[Line]], stack: ExitStack, *, as_json: bool
) -> Display:
    """The form for this output."""
    if as_json or not redrawable():
        return ChangedLines(as_json=as_json)
    return LiveTable(stack.enter_context(LiveScreen()), table)


async def watch_jobs(feed: JobsFeed, read: ReadJobs, to: Display) -> None:
    """Show the jobs and every change, without end. Raises the scheduler's error at the start.

    Later a scheduler that does not answer is asked again.
    """
    async with feed:
        jobs: Sequence[Entry] = ()
        while True:
            try:
                jobs = await read(feed.client, await feed.newest_records())
                to.show(jobs, None)
            except AppError as error:
                if error.code not in NO_ANSWER:
                    raise
                to.show(jobs, error)
            await feed.changed(READ_EVERY_S)
            pause(0)  # ends the command when the reader of the output is gone
