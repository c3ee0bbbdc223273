"""The log of a function: the lines of its invocations, each with the job it worked on.

The invocations of a job are found by the first line of the runner, which names the job.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from corekit.values import replace
from orchgpu.cloud_services import CloudServices, LogEvent
from orchgpu.jobs.id_form import JOB_ID
from orchgpu.jobs.joblog import Line

#: The newest lines that are kept, as many as `--tail` may ask for.
LINES_MAX = 100_000
#: A read begins this long before the newest line read so far: a cloud shows lines late, and out of
#: order.
LATE_S = 300.0
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
    _newest_s: float = 0.0  #: time of the newest line that `since` found
    _jobs: JobsByRequest = field(default_factory=JobsByRequest)

    def since(self, start_s: float) -> list[Line]:
        """The newest lines since `start_s`; a repeated call returns only lines that may be new."""
        after_s = max(start_s, self._newest_s - LATE_S)
        events = deque(self.services.log_events(self.function, after_s), maxlen=LINES_MAX)
        lines = [_line(event, job) for event, job in self._jobs.named(events)]
        self._newest_s = max([self._newest_s, *(line.at_s for line in lines)])
        return lines

    def of_job(self, job: str, start_s: float) -> list[Line]:
        """The lines of those invocations that worked on the job."""
        found: list[Line] = []
        for marker in self.services.log_events(self.function, start_s, job):
            named = _RUNTIME.match(as_text(marker).message)
            if named is not None:
                events = self.services.stream_events(self.function, marker.stream, start_s)
                found += [_line(one, job) for one in invocation(events, named["request"])]
        return found


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
