"""Lines about a job or a function from all their sources, as one stream by time.

Programs of the local system write JSON lines. The steps of a job are those of its record, with
their times; lines of its function come from the cloud. The invocations of a job are found there by
the first line of the runner, which names the job.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from contract.keys import JOB_ID
from corekit.values import Value, replace
from orchgpu.cloud_services import CloudServices, LogEvent
from orchgpu.core.function import Function
from orchgpu.jobs.known import Known, moments

#: Keys of a JSON line that are shown in another way, or that people do not need.
_OTHER_KEYS = frozenset({"time", "level", "logger", "message", "event", "job", "error"})


class Line(Value):
    """One line of one writer."""

    at_s: float  #: wall clock of the writer
    where: str  #: function, orchestrator, scheduler, queue, device, or a program's name
    text: str
    job: str | None = None  #: the job it is about; None: no job, or not known
    id: str | None = None  #: of a moment, whose text and time may become more precise

    @property
    def key(self) -> object:
        """A key that is equal for the same line in two reads."""
        return self.id or (self.at_s, self.where, self.text)

    def as_json(self) -> dict[str, object]:
        return {"at_s": self.at_s, "where": self.where, "text": self.text, "job": self.job}


#: All lines of one source so far; read again and again while following.
LineSource: TypeAlias = Callable[[], Iterable[Line]]


@dataclass(slots=True)
class Stream:
    """Lines of several sources, each line once, by time."""

    sources: Sequence[LineSource]
    keep: Callable[[Line], bool] = lambda _: True
    _shown: Counter[object] = field(default_factory=Counter)

    def fresh(self) -> list[Line]:
        """The lines since the last call; lines with the same time keep their writer's order."""
        fresh: list[Line] = []
        now: Counter[object] = Counter()
        for line in (line for source in self.sources for line in source() if self.keep(line)):
            now[line.key] += 1
            if now[line.key] > self._shown[line.key]:
                fresh.append(line)
        self._shown |= now
        return sorted(fresh, key=lambda line: line.at_s)


# ---------------------------------------------------------------------- the job's record


def record_lines(job: Known) -> Iterator[Line]:
    """The steps of queue, scheduler, orchestrator and device, by the job's record and result."""
    for one in moments(job):
        yield Line(
            at_s=one.at_s, where=one.where, text=one.what, job=job.job, id=f"{job.job}/{one.id}"
        )


def tail_lines(job: Known) -> list[Line]:
    """The last lines of the script, kept with results and reports: a substitute for the log."""
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
    _lines: list[tuple[Line, str]] = field(default_factory=list)  #: with the raw line

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
    """A program's JSON line in readable form; None for any other line, which has no time."""
    try:
        value = json.loads(raw)
        at_s = datetime.fromisoformat(str(value["time"])).timestamp()
        text = str(value["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    level = value.get("level", "info")
    loud = "" if level in ("info", "debug") else f"{level}: "
    more = "".join(f" {name}={word}" for name, word in value.items() if name not in _OTHER_KEYS)
    job = value.get("job")
    about = job if isinstance(job, str) and JOB_ID.fullmatch(job) else None
    return Line(at_s=at_s, where=program, text=f"{loud}{text}{more}", job=about)


#: The newest lines that are kept, as many as `--tail` may ask for.
LINES_MAX = 100_000
#: A read begins this long before the newest line read so far: a cloud shows lines late, and out of
#: order.
LATE_S = 300.0
#: An envelope's event reaches the function after the job was received, but clocks differ a little.
SLACK_S = 60.0
#: Requests, and streams, whose job is remembered while a log is followed.
REQUESTS_MAX = 10_000
#: The newest invocations of a stream whose start is remembered: a read goes back `LATE_S`.
STARTS_MAX = 1000
#: The prefix that the runtime writes before a message: level, time, request.
_RUNTIME = re.compile(r"\[\w+\]\t[^\t]*\t(?P<request>[0-9a-f-]{36})\t")
#: After that, the first line of the runner.
_MARKER = re.compile(rf"(?P<job>{JOB_ID.pattern}), attempt ")
#: Lambda's own lines in JSON; the words of the same lines in text.
_PLATFORM_WORDS = {"platform.start": "START", "platform.report": "REPORT"}
_PLATFORM = re.compile(r"(?P<word>START|END|REPORT) RequestId: (?P<request>[0-9a-f-]{36})")


@dataclass(slots=True)
class JobsByRequest:
    """The job of each event of a function's log, over several reads.

    A stream has one invocation at a time, which begins with START; the runner's first line names
    its job. A read may begin in the middle of an invocation whose start an earlier read returned.
    """

    _jobs: dict[str, str] = field(default_factory=dict)  #: by request
    _began: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  #: by stream: START

    def named(self, events: Collection[LogEvent]) -> list[tuple[LogEvent, str | None]]:
        """The events of one read, in order, each with its job if the job is known."""
        now: dict[str, str] = {}  #: by stream
        requests: list[str | None] = []
        events = [as_text(event) for event in events]
        for event in events:
            found = _PLATFORM.match(event.message) or _RUNTIME.match(event.message)
            if found is not None:
                now[event.stream] = found["request"]
                self._note(found, event)
            requests.append(now.get(event.stream) or self._request_at(event))
        jobs = [self._jobs.get(request) if request else None for request in requests]
        self._forget()
        return list(zip(events, jobs, strict=True))

    def _note(self, found: re.Match[str], event: LogEvent) -> None:
        marker = _MARKER.match(event.message, found.end())
        if marker is not None:
            self._jobs.setdefault(found["request"], marker["job"])  # the runner's line is the first
        elif event.message.startswith("START"):
            began = self._began.setdefault(event.stream, [])
            if (event.at_ms, found["request"]) not in began:
                began.append((event.at_ms, found["request"]))

    def _request_at(self, event: LogEvent) -> str | None:
        began = reversed(self._began.get(event.stream, ()))
        return next((request for since_ms, request in began if since_ms <= event.at_ms), None)

    def _forget(self) -> None:
        """Drop the oldest entries, above the number that one read can need."""
        for kept in (self._jobs, self._began):
            while len(kept) > REQUESTS_MAX:
                del kept[next(iter(kept))]
        for began in self._began.values():
            del began[:-STARTS_MAX]


@dataclass(slots=True)
class FunctionLog:
    """The log of one function. Raises AppError only; the log of a function never run is empty."""

    services: CloudServices
    function: str
    group: str = ""  #: its log group; "" = as Lambda names it
    _newest_s: float = 0.0  #: time of the newest line that `since` found
    _jobs: JobsByRequest = field(default_factory=JobsByRequest)

    def since(self, start_s: float) -> list[Line]:
        """The newest lines since `start_s`; a repeated call returns only lines that may be new."""
        after_s = max(start_s, self._newest_s - LATE_S)
        events = deque(
            self.services.log_events(self.function, after_s, group=self.group), maxlen=LINES_MAX
        )
        lines = [_line(event, job) for event, job in self._jobs.named(events)]
        self._newest_s = max([self._newest_s, *(line.at_s for line in lines)])
        return lines

    def of_job(self, job: str, start_s: float) -> list[Line]:
        """The lines of those invocations that worked on the job."""
        found: list[Line] = []
        for marker in self.services.log_events(self.function, start_s, job, self.group):
            named = _RUNTIME.match(as_text(marker).message)
            if named is not None:
                events = self.services.stream_events(
                    self.function, marker.stream, start_s, self.group
                )
                found += [_line(one, job) for one in invocation(events, named["request"])]
        return found


def log_group_of(function: Function | None) -> str:
    """The log group of a function that hosts run, and Lambda perhaps does not know; else ""."""
    host = None if function is None else function.host
    return "" if host is None else host.log_group


def function_lines(services: CloudServices, known: Known) -> list[Line]:
    """The lines of a job's function so far; of an ended job without a log, those of its result."""
    began = moments(known)
    if known.function is None or not began:
        return []
    log = FunctionLog(services, known.function.name, log_group_of(known.function))
    lines = log.of_job(known.job, began[0].at_s - SLACK_S)
    return lines or (tail_lines(known) if known.over else [])


def as_text(event: LogEvent) -> LogEvent:
    """The event as a log in text has it, of one in JSON (`logging: {format: JSON}`)."""
    if not event.message.startswith("{"):
        return event
    try:
        found = json.loads(event.message)
        text = _text_of(found)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return event  # a line of the script's own
    return event if text is None else replace(event, message=text)


def _text_of(found: Mapping[str, Any]) -> str | None:
    """`found` is what Lambda, or the script, wrote as JSON. Raises KeyError, TypeError."""
    kind = found.get("type")
    if kind in _PLATFORM_WORDS:
        request = found["record"]["requestId"]
        metrics = found["record"].get("metrics", {})
        shown = "".join(f"\t{name}: {value}" for name, value in metrics.items())
        return f"{_PLATFORM_WORDS[kind]} RequestId: {request}{shown}"
    if "requestId" in found and "message" in found:
        level, at = found.get("level", "INFO"), found.get("timestamp", "")
        return f"[{level}]\t{at}\t{found['requestId']}\t{found['message']}"
    return None


def invocation(events: Iterable[LogEvent], request: str) -> Iterator[LogEvent]:
    """The events of one request in its stream: an environment runs one at a time."""
    inside = False
    for event in map(as_text, events):
        found = _PLATFORM.match(event.message)
        if found is not None:
            inside = found["request"] == request
        if inside:
            yield event
        if found is not None and found["word"] != "START":
            if inside and found["word"] == "REPORT":
                return  # a stream may be long
            inside = False


def _line(event: LogEvent, job: str | None) -> Line:
    text = _RUNTIME.sub("", event.message).rstrip("\r\n")
    return Line(at_s=event.at_ms / 1000, where="function", text=text, job=job)
