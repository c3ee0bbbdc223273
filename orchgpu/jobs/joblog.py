"""Lines about a job or a function from all their sources, as one stream by time.

Programs of the local system write JSON lines. The steps of a job are those of its record, with
their times; lines of its function come from the cloud (`functionlog.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from corekit.values import Value, replace
from orchgpu.jobs.id_form import JOB_ID
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
