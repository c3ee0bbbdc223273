"""Lines of a job, a run, a function, or the local system's programs."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import click

from contract.keys import JOB_ID
from corekit.aio.output import pause
from corekit.cli.screen import continued, echo, echo_json, echo_raw, json_option
from corekit.cli.table import ID_CHARACTERS_MIN
from corekit.cli.text import cells
from corekit.cli.times import shown_time, utc_option
from corekit.errors import AppError, ErrorCode
from corekit.units import parse_duration_s
from corekit.values import Value
from orchgpu.cli.completing import job_function_or_program
from orchgpu.cli.jobs.lookup import is_prefix, whole_id
from orchgpu.cli.jobs.sources import (
    LogSources,
    sources_of_function,
    sources_of_job,
    sources_of_run,
)
from orchgpu.cli.options import scheduler_option
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.joblog import Line, Stream, read_line
from orchgpu.jobs.runs import find_run, is_run
from orchgpu.local.home import default_home

#: While following, the pause between two reads of a program's file.
LOOK_EVERY_S = 0.2
#: While following, the pause between two calls of clouds and schedulers.
ASK_EVERY_S = 1.0
#: A cloud shows lines with a delay: a job is followed this long after its end.
AFTER_END_S = 3.0
TAIL_LINES = 20


class LineFilter(Value):
    """The options --since and --filter."""

    since_s: float | None  #: wall clock
    text: str | None

    def allows(self, line: Line) -> bool:
        """True for a line of a job or a function that is to be shown."""
        if line.at_s < (self.since_s or 0.0):
            return False
        return self.text is None or self.text in line.text or self.text in (line.job or "")

    def allows_raw(self, program: str, raw: str) -> bool:
        """The same for a line of a program; without a time, as in a traceback, it is recent."""
        if self.text is not None and self.text not in raw:
            return False
        line = read_line(program, raw) if self.since_s is not None else None
        return line is None or self.since_s is None or line.at_s >= self.since_s


@click.command("logs")
@click.argument(
    "what",
    required=False,
    metavar="[JOB|RUN|FUNCTION|PROGRAM]",
    shell_complete=job_function_or_program,
)
@click.option(
    "-f", "--follow", is_flag=True, help="Continue with new lines, until the end of the job."
)
@click.option("--since", metavar="DURATION", help="Only lines younger than this, as in 90s or 2h.")
@click.option("--filter", "text", metavar="TEXT", help="Only lines that contain TEXT.")
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(0, 100_000),
    metavar="N",
    help=f"Only the last N. [default: all of a job's, else {TAIL_LINES}]",
)
@click.option("--raw", is_flag=True, help="Lines as they were written, with control characters.")
@scheduler_option
@utc_option
@json_option
def command(
    what: str | None,
    follow: bool,
    since: str | None,
    text: str | None,
    tail: int | None,
    raw: bool,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Lines of a JOB, RUN or FUNCTION by time, from function, orchestrator, scheduler, device.

    Without an argument, or with a PROGRAM, the last lines of the local system's logs, even after
    `down`. With --follow and --json every line is an object of its own.

    \b
    Example:  orchgpu logs text-recognition --follow --filter error
    """
    since_s = time.time() - parse_duration_s(since) if since is not None else None
    wanted = LineFilter(since_s=since_s, text=text)
    if what is None or what in {file.stem for file in _files()}:
        printer = LinePrinter(as_json=as_json, raw=raw, jobs=False)
        _programs(what, TAIL_LINES if tail is None else tail, follow, wanted, printer)
        return
    with closing(JobCloud()) as cloud:
        if is_prefix(what) and not _names_function(cloud, what):
            what = whole_id(what, scheduler)
        one_job = JOB_ID.fullmatch(what) is not None
        if is_run(what) and not _names_function(cloud, what):
            sources = sources_of_run(cloud, find_run(cloud, what), scheduler)
        elif one_job:
            sources = sources_of_job(cloud, what, scheduler)
        else:
            name = _known_function(cloud, what)
            sources = sources_of_function(cloud, name, scheduler, since_s)
            tail = TAIL_LINES if tail is None else tail
        printer = LinePrinter(as_json=as_json, raw=raw, jobs=not one_job)
        _show(sources, wanted.allows, tail, printer, follow=follow)


def _names_function(cloud: JobCloud, name: str) -> bool:
    """True for the name of a function, which may look like an id; False without a cloud."""
    with suppress(AppError):
        return name in cloud.deployed()
    return False


def _known_function(cloud: JobCloud, name: str) -> str:
    """The name. Raises NOT_FOUND with all known names, or with the reason why none is known."""
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
        raise AppError(code, f"{name!r} is not a job, {known}") from error


def _show(
    log: LogSources,
    keep: Callable[[Line], bool],
    tail: int | None,
    printer: LinePrinter,
    *,
    follow: bool,
) -> None:
    stream = Stream(log.sources, keep)
    lines = stream.fresh()
    lines = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
    if printer.as_json and not follow:
        echo_json({"lines": [line.as_json() for line in lines]})
        return
    printer.lines(lines)
    ended_s = None
    while follow and (ended_s is None or time.monotonic() < ended_s + AFTER_END_S):
        if ended_s is None and log.over():
            ended_s = time.monotonic()
        pause(ASK_EVERY_S)
        printer.lines(stream.fresh())


class LinePrinter(Value):
    """The form of printed lines."""

    as_json: bool
    raw: bool
    jobs: bool  #: each line names its job

    def lines(self, lines: Iterable[Line]) -> None:
        """Print each line with its time; every line of a text gets one, so none can be forged."""
        for line in lines:
            if self.as_json:
                echo_json(line.as_json(), indent=None)
                continue
            at = shown_time(line.at_s, milliseconds=True)
            job = f"{(line.job or '-')[:ID_CHARACTERS_MIN]:<{ID_CHARACTERS_MIN}}  "
            for part in line.text.split("\n"):
                self._print(f"{at}  {line.where:<12}  {job if self.jobs else ''}", part)

    def program(self, name: str, line: str, width: int) -> None:
        if self.as_json:
            echo_json({"program": name, "text": line}, indent=None)
        else:
            self._print(f"{name.ljust(width)} | ", line)

    def _print(self, ours: str, foreign: str) -> None:
        if self.raw:
            echo_raw(ours + foreign)
        else:
            echo(ours, continued(foreign, cells(ours)))


# ---------------------------------------------------------------------- programs


def _files() -> list[Path]:
    return sorted(default_home().logs.glob("*.log"))


def _programs(
    program: str | None, tail: int, follow: bool, wanted: LineFilter, printer: LinePrinter
) -> None:
    files = [file for file in _files() if program in (None, file.stem)]
    if not files:
        folder = default_home().logs
        raise AppError(ErrorCode.NOT_FOUND, f"no logs in {folder}; `orchgpu up` creates them")
    ends: dict[Path, int] = {}
    last: list[tuple[str, str]] = []
    for file in files:
        with file.open(errors="replace") as text:
            kept = (line for line in text if wanted.allows_raw(file.stem, line))
            last += [(file.stem, line.rstrip()) for line in collections.deque(kept, maxlen=tail)]
            ends[file] = text.tell() if follow else 0
    width = max(len(file.stem) for file in files)
    if printer.as_json and not follow:
        echo_json({"lines": [{"program": name, "text": line} for name, line in last]})
        return
    for name, line in last:
        printer.program(name, line, width)
    if follow:
        for name, line in _new_lines(ends):
            if wanted.allows_raw(name, line):
                printer.program(name, line, width)


def _new_lines(ends: dict[Path, int]) -> Iterator[tuple[str, str]]:
    """Complete lines as they are written, indefinitely."""
    while True:
        pause(LOOK_EVERY_S)
        for file, end in ends.items():
            with file.open(errors="replace") as text:
                text.seek(end)
                while (line := text.readline()).endswith("\n"):
                    ends[file] = text.tell()
                    yield file.stem, line.rstrip()
