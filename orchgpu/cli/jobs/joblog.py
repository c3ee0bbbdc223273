"""Lines about a job or a function from everywhere they are written, as one stream by time.

The function's lines come from CloudWatch Logs: those of a job's invocations are found by the first
line of the runner, which names the job. Programs of the local system write JSON lines. What the
scheduler did stands in the job's record, with its times.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from corekit.errors import AppError, ErrorCode
from orchgpu.cli.jobs.ids import JOB_ID

if TYPE_CHECKING:
    from orchgpu.cli.jobs.known import Known

#: Of what a function wrote the newest lines are kept, as many as `--tail` may ask for.
LINES_MAX = 100_000
#: A look begins so long before the newest line that was seen: CloudWatch shows lines late, and not
#: in their order.
LATE_S = 300.0
#: An envelope's event reaches the function after the job was received, clocks differ a little.
SLACK_S = 60.0
#: Requests, and streams, whose job is remembered while a log is followed.
REQUESTS_MAX = 10_000
#: Of one stream, the newest invocations whose begin is remembered: a look goes back `LATE_S`.
STARTS_MAX = 1000
#: What the runtime writes before the message: level, time, request.
_RUNTIME = re.compile(r"\[\w+\]\t[^\t]*\t(?P<request>[0-9a-f-]{36})\t")
#: After that, the first line of the runner.
_MARKER = re.compile(rf"(?P<job>{JOB_ID.pattern}), attempt ")
_PLATFORM = re.compile(r"(?P<word>START|END|REPORT) RequestId: (?P<request>[0-9a-f-]{36})")
#: Of a JSON line: told otherwise, or of no use to people.
_TOLD = frozenset({"time", "level", "logger", "message", "event", "job", "error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line that somebody wrote."""

    at_s: float  #: wall clock of the writer
    where: str  #: function, orchestrator, scheduler, queue, device, or a program's name
    text: str
    job: str | None = None  #: which it is about; None: about none, or not known
    id: str | None = None  #: of a moment: its text and time may be known better later

    @property
    def key(self) -> object:
        """What makes two looks see the same line."""
        return self.id or (self.at_s, self.where, self.text)

    def as_json(self) -> dict[str, Any]:
        return {"at_s": self.at_s, "where": self.where, "text": self.text, "job": self.job}


#: Everything that one place has to say by now; asked again and again while following.
Source: TypeAlias = Callable[[], Iterable[Line]]


@dataclass(slots=True)
class Stream:
    """What several sources say, each line once, by time."""

    sources: Sequence[Source]
    keep: Callable[[Line], bool] = lambda _: True
    _told: Counter[object] = field(default_factory=Counter)

    def fresh(self) -> list[Line]:
        """The lines that were not told before; those of one moment in their writer's order."""
        fresh: list[Line] = []
        now: Counter[object] = Counter()
        for line in (line for source in self.sources for line in source() if self.keep(line)):
            now[line.key] += 1
            if now[line.key] > self._told[line.key]:
                fresh.append(line)
        self._told |= now
        return sorted(fresh, key=lambda line: line.at_s)


# ---------------------------------------------------------------------- the job's record


def of_record(known: Callable[[], Known]) -> Source:
    """What queue, scheduler, orchestrator and device did, by the job's record and result."""
    from orchgpu.cli.jobs.known import moments

    def look() -> Iterator[Line]:
        job = known()
        for one in moments(job):
            yield Line(
                at_s=one.at_s, where=one.where, text=one.what, job=job.job, id=f"{job.job}/{one.id}"
            )

    return look


def of_tails(known: Callable[[], Known]) -> list[Line]:
    """The last lines of the script, kept with results and reports; where no log has them."""
    job = known()
    kept = [(job.standing.log_tail, job.standing.times)] if job.standing else []
    kept += [(report.log_tail, report.times) for report in job.reports.values()]
    return [
        Line(at_s=times.get("EEnd", 0.0), where="function", text=line, job=job.job)
        for tail, times in kept
        for line in tail.splitlines()
    ]


# ---------------------------------------------------------------------- programs of this machine


@dataclass(slots=True)
class Programs:
    """Lines of the local system's logs that contain one of the words, each with its job."""

    logs: Path
    words: Callable[[], Iterable[tuple[str, str]]]  #: ids of jobs and leases, with the job
    _ends: dict[Path, int] = field(default_factory=dict)
    _lines: list[tuple[Line, str]] = field(default_factory=list)  #: with what was written

    def __call__(self) -> Iterator[Line]:
        for file in sorted(self.logs.glob("*.log")):
            self._read(file)
        words = dict(self.words())
        for line, raw in self._lines:
            about = next((word for word in words if word in raw), None)
            if about is not None:
                yield replace(line, job=line.job or words[about])

    def _read(self, file: Path) -> None:
        with file.open(errors="replace") as text:
            text.seek(self._ends.get(file, 0))
            while (raw := text.readline()).endswith("\n"):
                self._ends[file] = text.tell()
                line = read_line(file.stem, raw)
                if line is not None:
                    self._lines.append((line, raw))


def read_line(program: str, raw: str) -> Line | None:
    """A program's JSON line for people; None for anything else, which has no time."""
    try:
        value = json.loads(raw)
        at_s = datetime.fromisoformat(str(value["time"])).timestamp()
        text = str(value["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    level = value.get("level", "info")
    loud = "" if level in ("info", "debug") else f"{level}: "
    more = "".join(f" {name}={word}" for name, word in value.items() if name not in _TOLD)
    job = value.get("job")
    about = job if isinstance(job, str) and JOB_ID.fullmatch(job) else None
    return Line(at_s=at_s, where=program, text=f"{loud}{text}{more}", job=about)


# ---------------------------------------------------------------------- CloudWatch


@dataclass(slots=True)
class Owners:
    """Which job wrote each event of a function's log, over several looks at it.

    A stream has one invocation at a time, which begins with START; the runner's first line names
    its job. A look may begin in the middle of an invocation that an earlier one saw begin.
    """

    _jobs: dict[str, str] = field(default_factory=dict)  #: by request
    _began: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  #: by stream: START

    def named(
        self, events: Collection[Mapping[str, Any]]
    ) -> list[tuple[Mapping[str, Any], str | None]]:
        """The events of one look, in their order, each with its job if that is known."""
        now: dict[str, str] = {}  #: by stream
        requests: list[str | None] = []
        for event in events:
            message, stream = str(event["message"]), str(event.get("logStreamName", ""))
            told = _PLATFORM.match(message) or _RUNTIME.match(message)
            if told is not None:
                now[stream] = told["request"]
                self._note(told, message, stream, int(event["timestamp"]))
            requests.append(now.get(stream) or self._request_at(stream, int(event["timestamp"])))
        found = [self._jobs.get(request) if request else None for request in requests]
        self._forget()
        return list(zip(events, found, strict=True))

    def _note(self, told: re.Match[str], message: str, stream: str, at_ms: int) -> None:
        marker = _MARKER.match(message, told.end())
        if marker is not None:
            self._jobs.setdefault(told["request"], marker["job"])  # the runner's line is the first
        elif message.startswith("START"):
            began = self._began.setdefault(stream, [])
            if (at_ms, told["request"]) not in began:
                began.append((at_ms, told["request"]))

    def _request_at(self, stream: str, at_ms: int) -> str | None:
        began = self._began.get(stream, ())
        return next((request for since_ms, request in reversed(began) if since_ms <= at_ms), None)

    def _forget(self) -> None:
        """The oldest, of more than a look can show."""
        for kept in (self._jobs, self._began):
            while len(kept) > REQUESTS_MAX:
                del kept[next(iter(kept))]
        for began in self._began.values():
            del began[:-STARTS_MAX]


@dataclass(slots=True)
class FunctionLog:
    """The log group of one function. Raises AppError only; a group that is not there is empty."""

    client: Any  #: of boto3, for CloudWatch Logs
    function: str
    _seen_s: float = 0.0  #: time of the newest line that `since` found
    _owners: Owners = field(default_factory=Owners)

    @property
    def group(self) -> str:
        return f"/aws/lambda/{self.function}"

    def since(self, start_s: float) -> list[Line]:
        """The newest lines written since then; asked again, those that may be new."""
        after_s = max(start_s, self._seen_s - LATE_S)
        events = deque(self._filtered(after_s, ""), maxlen=LINES_MAX)
        lines = [_line(event, job) for event, job in self._owners.named(events)]
        self._seen_s = max([self._seen_s, *(line.at_s for line in lines)])
        return lines

    def of_job(self, job: str, start_s: float) -> list[Line]:
        """The lines of those invocations that worked on the job."""
        found: list[Line] = []
        for marker in self._filtered(start_s, f'"{job}"'):
            named = _RUNTIME.match(str(marker["message"]))
            if named is not None:
                events = self._stream(str(marker["logStreamName"]), start_s)
                found += [_line(one, job) for one in invocation(events, named["request"])]
        return found

    def _filtered(self, start_s: float, pattern: str) -> Iterator[dict[str, Any]]:
        wanted = {"filterPattern": pattern} if pattern else {}
        yield from self._pages("filter_log_events", "nextToken", "nextToken", start_s, **wanted)

    def _stream(self, name: str, start_s: float) -> Iterator[dict[str, Any]]:
        yield from self._pages(
            "get_log_events",
            "nextForwardToken",
            "nextToken",
            start_s,
            logStreamName=name,
            startFromHead=True,
        )

    def _pages(
        self, call: str, given: str, asked: str, start_s: float, **wanted: Any
    ) -> Iterator[dict[str, Any]]:
        from orchgpu.adapters.aws.errors import translated

        token: dict[str, str] = {}
        while True:
            try:
                with translated(f"logs:{call} {self.group}"):
                    page = getattr(self.client, call)(
                        logGroupName=self.group,
                        startTime=max(0, int(start_s * 1000)),
                        **wanted,
                        **token,
                    )
            except AppError as error:
                if error.code is not ErrorCode.NOT_FOUND:
                    raise
                return  # nothing was ever written
            yield from page.get("events", ())
            new = page.get(given)
            if not new or new == token.get(asked):
                return
            token = {asked: str(new)}


def invocation(events: Iterable[dict[str, Any]], request: str) -> Iterator[dict[str, Any]]:
    """The events of one request in its stream: an environment has one at a time."""
    inside = False
    for event in events:
        told = _PLATFORM.match(str(event["message"]))
        if told is not None:
            inside = told["request"] == request
        if inside:
            yield event
        if told is not None and told["word"] != "START":
            if inside and told["word"] == "REPORT":
                return  # a stream may be long
            inside = False


def _line(event: Mapping[str, Any], job: str | None) -> Line:
    text = _RUNTIME.sub("", str(event["message"])).rstrip("\r\n")
    return Line(at_s=event["timestamp"] / 1000, where="function", text=text, job=job)
