"""`orchgpu logs`: lines of a job, a function, or the programs of the local system."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corekit.aio.output import pause
from corekit.errors import AppError, ErrorCode
from orchgpu.cli.jobs.ids import JOB_ID, is_prefix, whole_id
from orchgpu.cli.scheduler import scheduler_address, scheduler_option
from orchgpu.cli.terminal.completing import job_function_or_program
from orchgpu.cli.terminal.screen import continued, json_option, say, say_json, say_raw
from orchgpu.cli.terminal.table import ID_LEAST
from orchgpu.cli.terminal.text import cells
from orchgpu.cli.terminal.times import shown_time, utc_option
from orchgpu.local.home import default_home

if TYPE_CHECKING:
    from gpu_scheduler.model import Record
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.joblog import Line, Source
    from orchgpu.cli.jobs.known import Known
    from orchgpu.core.function import Function

#: While following, a program's file is looked at this often; it costs nothing.
LOOK_EVERY_S = 0.2
#: While following, clouds and schedulers are asked this often; a look is a few calls.
ASK_EVERY_S = 1.0
#: CloudWatch shows a line some seconds after it was written; so long after its end a job is asked.
AFTER_END_S = 3.0
#: A function's lines without --since.
FUNCTION_SINCE_S = 3600.0
#: Jobs of a function whose lines are shown, the newest.
JOBS_MAX = 50
#: The newest records, of all functions, among which those are looked for.
RECORDS_MAX = 1000
TAIL_LINES = 20
#: Results and reports that are read together.
LOOKS_AT_ONCE = 8


@click.command(short_help="Lines of a job, a function, or of the local system's programs.")
@click.argument(
    "what", required=False, metavar="[JOB|FUNCTION|PROGRAM]", shell_complete=job_function_or_program
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on with what is written from now on; a job's end ends it.",
)
@click.option("--since", metavar="DURATION", help="Only what is younger, as in 90s or 2h.")
@click.option("--filter", "wanted", metavar="TEXT", help="Only lines that contain TEXT.")
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(0, 100_000),
    metavar="N",
    help=f"Only the last N. [default: all of a job's, else {TAIL_LINES}]",
)
@click.option(
    "--raw", is_flag=True, help="Lines as they were written, also what steers a terminal."
)
@scheduler_option
@utc_option
@json_option
def logs(
    what: str | None,
    follow: bool,
    since: str | None,
    wanted: str | None,
    tail: int | None,
    raw: bool,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Lines of a JOB or a FUNCTION by time: of function, orchestrator, scheduler and device.

    Without an argument, or with a PROGRAM, the last lines of the local system's logs, also after
    `down`. With --follow and --json every line is an object of its own.

    \b
    Example:  orchgpu logs text-recognition --follow --filter error
    """
    from corekit.units import parse_duration_s

    younger_s = time.time() - parse_duration_s(since) if since is not None else None
    if what is None or what in {file.stem for file in _files()}:
        look = Look(as_json=as_json, raw=raw, jobs=False)
        _programs(what, TAIL_LINES if tail is None else tail, follow, (younger_s, wanted), look)
        return
    with ExitStack() as stack:
        if is_prefix(what) and not _names_function(what):
            what = whole_id(what, scheduler)
        of_one = JOB_ID.fullmatch(what) is not None
        if of_one:
            sources, over = _of_job(what, scheduler, stack)
        else:
            sources, over = _of_function(what, scheduler, younger_s, stack)
            tail = TAIL_LINES if tail is None else tail
        show = Look(as_json=as_json, raw=raw, jobs=not of_one).lines
        _show(sources, over, (younger_s, wanted), tail, show, follow=follow, as_json=as_json)


# ---------------------------------------------------------------------- jobs and functions


def _of_job(
    job: str, scheduler: str | None, stack: ExitStack
) -> tuple[list[Source], Callable[[], bool]]:
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.job import known_job, say_unheard
    from orchgpu.cli.jobs.joblog import SLACK_S, FunctionLog, Programs, of_record, of_tails
    from orchgpu.cli.jobs.known import moments

    newest = [known_job(job, scheduler, also_unheard=True)]
    say_unheard(newest[0])

    def known() -> Known:
        return newest[0]

    def look() -> Iterator[Line]:  # the first source: the others tell of the same look
        if not newest[0].over:
            newest[0] = known_job(job, scheduler, also_unheard=True)
        yield from of_record(known)()

    def of_function() -> list[Line]:
        function = known().function
        began = moments(known())
        if function is None or not began:
            return []
        start_s = began[0].at_s - SLACK_S
        return FunctionLog(cloud.logs, function.name).of_job(job, start_s) or (
            of_tails(known) if known().over else []
        )

    def words() -> Iterator[tuple[str, str]]:
        record = known().record
        yield job, job
        if record is not None and record.lease:
            yield record.lease, job

    cloud = stack.enter_context(closing(JobCloud()))
    programs = Programs(default_home().logs, words)
    return [look, of_function, programs], lambda: known().over


def _of_function(
    name: str, scheduler: str | None, younger_s: float | None, stack: ExitStack
) -> tuple[list[Source], Callable[[], bool]]:
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.joblog import FunctionLog, Programs, of_record

    cloud = stack.enter_context(closing(JobCloud()))
    function, served = _known_function(cloud, name), _served(cloud, name)
    start_s = time.time() - FUNCTION_SINCE_S if younger_s is None else younger_s
    jobs: list[str] = []
    known: dict[str, Known] = {}  #: as they were at their last change
    unheard: list[AppError] = []  #: told once, also while following

    def of_jobs() -> Iterator[Line]:
        records = _records(scheduler, unheard)
        mine = [record for record in records if record.block.get("function") == name][:JOBS_MAX]
        jobs[:] = [record.holder for record in mine]
        known.update(
            _looks(
                cloud,
                served,
                [
                    one
                    for one in mine
                    if known.get(one.holder) is None or known[one.holder].record != one
                ],
            )
        )
        for job in jobs:
            yield from of_record(lambda job=job: known[job])()  # type: ignore[misc]  # bound now

    log = FunctionLog(cloud.logs, function)
    programs = Programs(default_home().logs, lambda: [(job, job) for job in jobs])
    return [of_jobs, lambda: log.since(start_s), programs], lambda: False


def _served(cloud: JobCloud, name: str) -> Function | None:
    """The function as orchestrators serve it; None for one without a device."""
    return cloud.function(name) if name in cloud.served() else None


def _looks(
    cloud: JobCloud, function: Function | None, records: Sequence[Record]
) -> dict[str, Known]:
    """The jobs of one function, with what the cloud holds of those that could have left anything.

    An attempt leaves a report when it failed and a job a result at its end: before that there is
    nothing to ask for.
    """
    from gpu_scheduler.model import RETRY_AT, Step
    from orchgpu.cli.jobs.batch import for_each
    from orchgpu.cli.jobs.known import Known, Scheduled, look_of

    def look(record: Record) -> Known:
        scheduled = Scheduled(record=record)
        if record.step is Step.ENDED or record.attempt > 1 or RETRY_AT in record.times:
            return look_of(cloud, function, scheduled, record.holder)
        return Known(
            job=record.holder, function=function, scheduled=scheduled, result=None, reports={}
        )

    found = for_each(look, records, LOOKS_AT_ONCE, lambda _: None)
    return {one.job: one for one in found}


def _records(scheduler: str | None, unheard: list[AppError]) -> list[Record]:
    """The newest records; none while the scheduler does not answer, which is told once."""
    from orchgpu.cli.jobs.ended import UNHEARD
    from orchgpu.cli.jobs.waiting import newest_records
    from orchgpu.cli.scheduler import ask

    try:
        return ask(scheduler_address(scheduler), lambda one: newest_records(one, RECORDS_MAX))
    except AppError as error:
        if error.code not in UNHEARD:
            raise
        if not unheard:
            said = f"orchgpu: {error.message}; told is what the function wrote"
            say(said, err=True)
        unheard.append(error)
        return []


def _names_function(name: str) -> bool:
    """Names may look like ids; a cloud that cannot be asked says nothing of names."""
    from orchgpu.cli.cloud import JobCloud

    with closing(JobCloud()) as cloud, suppress(AppError):
        return name in cloud.deployed()
    return False


def _known_function(cloud: JobCloud, name: str) -> str:
    """Raises NOT_FOUND naming all that could have been meant, or why functions are not known."""
    try:
        if cloud.ledger(name) is not None:
            return name
        return cloud.function(name).name
    except AppError as error:
        programs = ", ".join(file.stem for file in _files())
        if error.code is ErrorCode.NOT_FOUND:
            functions = ", ".join(cloud.deployed()) or "none"
        elif programs:
            functions = f"not known: {error.message}"
        else:
            raise
        known = f"function ({functions}) or program with a log ({programs or 'none'})"
        asked = error.retryable and "aws_has" not in error.details  # there is a cloud
        code = error.code if asked else ErrorCode.NOT_FOUND
        raise AppError(code, f"{name!r} is no job, {known}") from error


def _show(
    sources: list[Source],
    over: Callable[[], bool],
    only: tuple[float | None, str | None],
    tail: int | None,
    show: Callable[[list[Line]], None],
    *,
    follow: bool,
    as_json: bool,
) -> None:
    from orchgpu.cli.jobs.joblog import Stream

    younger_s, wanted = only

    def keep(line: Line) -> bool:
        if line.at_s < (younger_s or 0.0):
            return False
        return wanted is None or wanted in line.text or wanted in (line.job or "")

    stream = Stream(sources, keep)
    lines = stream.fresh()
    lines = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
    if as_json and not follow:
        say_json({"lines": [line.as_json() for line in lines]})
        return
    show(lines)
    ended_s = None
    while follow and (ended_s is None or time.monotonic() < ended_s + AFTER_END_S):
        if ended_s is None and over():
            ended_s = time.monotonic()
        pause(ASK_EVERY_S)
        show(stream.fresh())


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How lines are printed."""

    as_json: bool
    raw: bool
    jobs: bool  #: of several jobs: each line names its own

    def lines(self, lines: list[Line]) -> None:
        """Each on a line of its own; what a line has several of, too: none can be forged."""
        for line in lines:
            if self.as_json:
                say_json(line.as_json(), indent=None)
                continue
            at = shown_time(line.at_s, milliseconds=True)
            job = f"{(line.job or '-')[:ID_LEAST]:<{ID_LEAST}}  " if self.jobs else ""
            for part in line.text.split("\n"):
                self._say(f"{at}  {line.where:<12}  {job}", part)

    def program(self, name: str, line: str, width: int) -> None:
        """A line of a program's log."""
        if self.as_json:
            say_json({"program": name, "text": line}, indent=None)
        else:
            self._say(f"{name.ljust(width)} | ", line)

    def _say(self, ours: str, foreign: str) -> None:
        if self.raw:
            say_raw(ours + foreign)
        else:
            say(ours, continued(foreign, cells(ours)))


# ---------------------------------------------------------------------- programs


def _files() -> list[Path]:
    return sorted(default_home().logs.glob("*.log"))


def _programs(
    program: str | None,
    tail: int,
    follow: bool,
    only: tuple[float | None, str | None],
    look: Look,
) -> None:
    files = [file for file in _files() if program in (None, file.stem)]
    if not files:
        folder = default_home().logs
        raise AppError(ErrorCode.NOT_FOUND, f"no logs in {folder}; `orchgpu up` makes them")
    ends: dict[Path, int] = {}
    last: list[tuple[str, str]] = []
    for file in files:
        with file.open(errors="replace") as text:
            kept = (line for line in text if _meant(file.stem, line, only))
            last += [(file.stem, line.rstrip()) for line in collections.deque(kept, maxlen=tail)]
            ends[file] = text.tell() if follow else 0
    width = max(len(file.stem) for file in files)
    if look.as_json and not follow:
        say_json({"lines": [{"program": name, "text": line} for name, line in last]})
        return
    for name, line in last:
        look.program(name, line, width)
    if follow:
        for name, line in _written(ends):
            if _meant(name, line, only):
                look.program(name, line, width)


def _meant(program: str, raw: str, only: tuple[float | None, str | None]) -> bool:
    """By --filter and --since; a line without a time, as of a traceback, is as young as any."""
    from orchgpu.cli.jobs.joblog import read_line

    younger_s, wanted = only
    if wanted is not None and wanted not in raw:
        return False
    line = read_line(program, raw) if younger_s is not None else None
    return line is None or younger_s is None or line.at_s >= younger_s


def _written(ends: dict[Path, int]) -> Iterator[tuple[str, str]]:
    """Whole lines as they come; for ever."""
    while True:
        pause(LOOK_EVERY_S)
        for file, end in ends.items():
            with file.open(errors="replace") as text:
                text.seek(end)
                while (line := text.readline()).endswith("\n"):
                    ends[file] = text.tell()
                    yield file.stem, line.rstrip()
