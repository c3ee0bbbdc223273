"""`orchgpu logs`: lines of a job, a function, or the programs of the local system."""

from __future__ import annotations

import collections
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corekit.errors import AppError, ErrorCode
from orchgpu.cli.output import pause
from orchgpu.cli.scheduler import scheduler_address, scheduler_option
from orchgpu.cli.screen import json_option, say_json
from orchgpu.local.home import default_home

if TYPE_CHECKING:
    from gpu_scheduler.model import Record
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.joblog import Line, Source
    from orchgpu.cli.known import Known

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
_JOB_ID = re.compile("j[0-9a-f]{25}")  #: `contract.keys.job_id`


@click.command(short_help="Lines of a job, a function, or of the local system's programs.")
@click.argument("what", required=False, metavar="[JOB|FUNCTION|PROGRAM]")
@click.option("-f", "--follow", is_flag=True,
              help="Go on with what is written from now on; a job's end ends it.")  # fmt: skip
@click.option("--since", metavar="DURATION", help="Only what is younger, as in 90s or 2h.")
@click.option("--filter", "wanted", metavar="TEXT", help="Only lines that contain TEXT.")
@click.option("-n", "--tail", type=click.IntRange(0, 100_000), metavar="N",
              help=f"Only the last N. [default: all of a job's, else {TAIL_LINES}]")  # fmt: skip
@scheduler_option
@json_option
def logs(
    what: str | None, follow: bool, since: str | None, wanted: str | None, tail: int | None,
    scheduler: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Lines of a JOB or a FUNCTION by time: of function, orchestrator, scheduler and device.

    Without an argument, or with a PROGRAM, the last lines of the local system's logs, also after
    `down`. With --follow and --json every line is an object of its own.

    \b
    Example:  orchgpu logs text-recognition --follow --filter error
    """
    from corekit.units import parse_duration_s

    younger_s = time.time() - parse_duration_s(since) if since is not None else None
    if what is None or what in {file.stem for file in _files()}:
        _programs(what, TAIL_LINES if tail is None else tail, follow, (younger_s, wanted), as_json)
        return
    with ExitStack() as stack:
        if _JOB_ID.fullmatch(what):
            sources, over = _of_job(what, scheduler, stack)
        else:
            sources, over = _of_function(what, scheduler, younger_s, stack)
            tail = TAIL_LINES if tail is None else tail
        _show(sources, over, (younger_s, wanted), tail, follow=follow, as_json=as_json)


# ---------------------------------------------------------------------- jobs and functions


def _of_job(
    job: str, scheduler: str | None, stack: ExitStack
) -> tuple[list[Source], Callable[[], bool]]:
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.job import known_job, say_unheard
    from orchgpu.cli.joblog import SLACK_S, FunctionLog, Programs, of_record, of_tails
    from orchgpu.cli.known import moments

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

    def words() -> list[str]:
        record = known().record
        return [job, *([record.lease] if record is not None and record.lease else [])]

    cloud = stack.enter_context(closing(JobCloud()))
    programs = Programs(default_home().logs, words)
    return [look, of_function, programs], lambda: known().over


def _of_function(
    name: str, scheduler: str | None, younger_s: float | None, stack: ExitStack
) -> tuple[list[Source], Callable[[], bool]]:
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.joblog import FunctionLog, Line, Programs, of_record
    from orchgpu.cli.known import Known, Scheduled

    cloud = stack.enter_context(closing(JobCloud()))
    function = _known_function(cloud, name)
    start_s = time.time() - FUNCTION_SINCE_S if younger_s is None else younger_s
    jobs: list[str] = []
    unheard: list[AppError] = []  #: told once, also while following

    def of_jobs() -> Iterator[Line]:
        records = _records(scheduler, unheard)
        mine = [record for record in records if record.block.get("function") == name][:JOBS_MAX]
        jobs[:] = [record.holder for record in mine]
        for record in mine:
            told = Known(
                job=record.holder, function=None, scheduled=Scheduled(record=record), result=None,
                reports={},
            )  # fmt: skip
            for line in of_record(lambda told=told: told)():  # type: ignore[misc]  # bound now
                yield Line(at_s=line.at_s, where=line.where, text=f"{record.holder} {line.text}")

    log = FunctionLog(cloud.logs, function)
    return [of_jobs, lambda: log.since(start_s), Programs(default_home().logs, lambda: jobs)], (
        lambda: False
    )


def _records(scheduler: str | None, unheard: list[AppError]) -> list[Record]:
    """The newest records; none while the scheduler does not answer, which is told once."""
    from orchgpu.cli.ended import UNHEARD
    from orchgpu.cli.scheduler import ask
    from orchgpu.cli.waiting import newest_records

    try:
        return ask(scheduler_address(scheduler), lambda one: newest_records(one, RECORDS_MAX))
    except AppError as error:
        if error.code not in UNHEARD:
            raise
        if not unheard:
            said = f"orchgpu: {error.message}; told is what the function wrote"
            click.echo(said, err=True)
        unheard.append(error)
        return []


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
        code = error.code if error.retryable else ErrorCode.NOT_FOUND
        raise AppError(code, f"{name!r} is no job, {known}") from error


def _show(
    sources: list[Source], over: Callable[[], bool], only: tuple[float | None, str | None],
    tail: int | None, *, follow: bool, as_json: bool,
) -> None:  # fmt: skip
    from orchgpu.cli.joblog import Stream

    younger_s, wanted = only

    def keep(line: Line) -> bool:
        return line.at_s >= (younger_s or 0.0) and (wanted is None or wanted in line.text)

    stream = Stream(sources, keep)
    lines = stream.fresh()
    lines = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
    if as_json and not follow:
        say_json({"lines": [asdict(line) for line in lines]})
        return
    _say_lines(lines, as_json=as_json)
    ended_s = None
    while follow and (ended_s is None or time.monotonic() < ended_s + AFTER_END_S):
        if ended_s is None and over():
            ended_s = time.monotonic()
        pause(ASK_EVERY_S)
        _say_lines(stream.fresh(), as_json=as_json)


def _say_lines(lines: list[Line], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            say_json(asdict(line), indent=None)
            continue
        at = datetime.fromtimestamp(line.at_s).astimezone()
        clock = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"
        click.echo(f"{clock}  {line.where:<12}  {line.text}")


# ---------------------------------------------------------------------- programs


def _files() -> list[Path]:
    return sorted(default_home().logs.glob("*.log"))


def _programs(
    program: str | None, tail: int, follow: bool, only: tuple[float | None, str | None],
    as_json: bool,
) -> None:  # fmt: skip
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
    if as_json and not follow:
        say_json({"lines": [{"program": name, "text": line} for name, line in last]})
        return
    for name, line in last:
        _say_program(name, line, width, as_json=as_json)
    if follow:
        for name, line in _written(ends):
            if _meant(name, line, only):
                _say_program(name, line, width, as_json=as_json)


def _meant(program: str, raw: str, only: tuple[float | None, str | None]) -> bool:
    """By --filter and --since; a line without a time, as of a traceback, is as young as any."""
    from orchgpu.cli.joblog import read_line

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


def _say_program(name: str, line: str, width: int, *, as_json: bool) -> None:
    if as_json:
        say_json({"program": name, "text": line}, indent=None)
    else:
        click.echo(f"{name.ljust(width)} | {line}")
