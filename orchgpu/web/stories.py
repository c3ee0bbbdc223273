"""One job for one viewer: its record by the scheduler, its objects by the cloud, its timeline.

A browser shows only those outputs that cannot hold scripts; all others are downloads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import PurePosixPath

from contract.keys import JOB_ID
from contract.result import Result
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.client import SchedulerClient
from orchgpu.core.function import Function
from orchgpu.core.job import input_from_payload
from orchgpu.jobs.known import (
    Known,
    Scheduled,
    intervals_of,
    latencies,
    look,
    look_of,
    moments,
    scheduled,
)
from orchgpu.jobs.rights import KeyRights
from orchgpu.jobs.summary import JobSummary, summary_of
from orchgpu.jobs.waiting import pause_sentence
from orchgpu.report.cost import Comparison
from orchgpu.web.http.security import Visit

#: A larger file is a download; the whole is read into memory either way, a few at a time.
PREVIEW_BYTES_MAX = 4 * 2**20
#: The most bytes of an output over the console; `orchgpu get` fetches larger ones.
BYTES_MAX = 256 * 2**20

#: Endings of files that a browser shows as pictures. Not SVG: it may hold scripts.
IMAGES: Mapping[str, str] = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
}
#: Endings of files that it shows as text, whatever their content.
TEXTS = frozenset(
    {
        *(".txt", ".csv", ".tsv", ".json", ".jsonl", ".log", ".md", ".yaml", ".yml", ".fasta"),
        *(".fa", ".py", ".js", ".xml", ".html", ".htm", ".svg"),
    }
)
_TEXT_TYPE = "text/plain; charset=utf-8"
_OTHER_TYPE = "application/octet-stream"


class OutputEntry(Value):
    """One output file of a job."""

    name: str
    bucket: str
    key: str
    bytes: int
    type: str
    preview: str | None  #: `text` or `image`


def outputs_of(result: Result | None) -> tuple[OutputEntry, ...]:
    """The output files of a result, in its order; none without a result."""
    files = [] if result is None else result.files
    return tuple(_entry(one) for one in files)


def _entry(file: Mapping[str, object]) -> OutputEntry:
    key, size = str(file.get("key", "")), file.get("size")
    count = size if isinstance(size, int) else 0
    kind, preview = _kind_of(key)
    return OutputEntry(
        name=PurePosixPath(key).name,
        bucket=str(file.get("bucket", "")),
        key=key,
        bytes=count,
        type=kind,
        preview=preview if count <= PREVIEW_BYTES_MAX else None,
    )


def _kind_of(key: str) -> tuple[str, str | None]:
    suffix = PurePosixPath(key).suffix.lower()
    if suffix in IMAGES:
        return IMAGES[suffix], "image"
    return (_TEXT_TYPE, "text") if suffix in TEXTS else (_OTHER_TYPE, None)


def output_at(outputs: tuple[OutputEntry, ...], number: str) -> OutputEntry:
    """The output of that number, from 0. Raises NOT_FOUND."""
    at = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else -1
    if not 0 <= at < len(outputs):
        raise AppError(ErrorCode.NOT_FOUND, f"the job has no output {number!r:.20}")
    return outputs[at]


#: Leases that a job waits for, of one answer: those that end soonest.
BLOCKING_MAX = 8
#: The parts of reports and results that the page gets.
_REPORT = ("reason", "detail", "exit_code", "log_tail")
_RESULT = ("state", "attempt", "notes", "device", *_REPORT)


async def story_of(visit: Visit, job: str, submitted: Function | None = None) -> Known:
    """All that the viewer may know of a job. Raises NOT_FOUND, DENIED.

    `submitted`: its function, where its input was stored here: it may not be received yet.
    """
    if not JOB_ID.fullmatch(job):
        raise AppError(ErrorCode.NOT_FOUND, f"{job!r:.60} is not the id of a job")

    async def question(client: SchedulerClient) -> Scheduled | None:
        return await scheduled(client, job)

    found = await visit.console.scheduler.ask(visit.session.key, question)
    if found is not None:
        visit.viewer.require_job(summary_of(found.record))
    if found is None and submitted is not None:
        known = await visit.ask_cloud(lambda cloud: look_of(cloud, submitted, None, job))
    else:
        known = await visit.ask_cloud(lambda cloud: look(cloud, found, job))
    if known.function is not None:  # a record names whichever function its key wrote
        visit.viewer.require_function(known.function)
    return known


def summary_of_known(known: Known) -> JobSummary:
    """The short form of a job, by its record or its result."""
    if known.record is not None:
        found = summary_of(known.record)
        return replace(found, device=found.device or _device_of(known))
    result = known.result
    assert result is not None, "a job without a record has a result"
    started_s = min(result.times.values(), default=result.ended_at_s)
    return JobSummary(
        job=known.job,
        function=None if known.function is None else known.function.name,
        bucket=None,
        key=None,
        state=result.state,
        reason=result.reason,
        attempt=result.attempt,
        received_s=started_s,
        changed_s=result.ended_at_s or max(result.times.values(), default=0.0),
        device=_device_of(known),
    )


def _device_of(known: Known) -> str | None:
    device = known.standing.device if known.standing is not None else {}
    return f"{device.get('host')} {device.get('model')}" if device else None


def explanation_of(known: Known) -> dict[str, object] | None:
    """The reason why the job waits now, with the expected start; None when it proceeds."""
    if known.scheduled is None:
        return None
    record, why = known.scheduled.record, known.scheduled.waits
    if why is None:
        sentence = pause_sentence(record, time.time())
        return {"text": sentence, "position": None, "expected_s": None} if sentence else None
    return {
        "text": why.sentence,
        "position": why.position,
        "expected_s": why.expected_s,
        "expected_why": why.expected_why,
        "blocking": known.scheduled.others[:BLOCKING_MAX],
        "blocking_total": len(known.scheduled.others),
    }


def result_of(known: Known) -> dict[str, object] | None:
    """The job's result, unless it will be replaced."""
    result = known.standing
    if result is None:
        return None
    return {
        **{name: getattr(result, name) for name in _RESULT},
        "ended_s": result.ended_at_s or result.times.get("committed"),
        "outputs": len(outputs_of(result)),
    }


def attempts_of(known: Known) -> list[dict[str, object]]:
    """The attempts that failed and left a report, by number."""
    return [
        {
            "attempt": number,
            **{name: getattr(report, name) for name in _REPORT},
            "reported_s": known.reported_s.get(number),
        }
        for number, report in sorted(known.reports.items())
    ]


def story_json(known: Known, viewer: KeyRights) -> dict[str, object]:
    summary, found = summary_of_known(known), moments(known)
    live = known.scheduled.lease if known.scheduled is not None else None
    return {
        **encode(summary),
        "promise": None if summary.promised is None else summary.promised.sentence,
        **_place_of(known),
        "timeline": intervals_of(known),
        "moments": found,
        "latencies": latencies(found),
        "attempts": attempts_of(known),
        "explain": explanation_of(known),
        "result": result_of(known),
        "leases": known.record.leases if known.record is not None else (),
        "lease": live,
        "lease_ends_in_s": known.scheduled.ends_in_s if known.scheduled is not None else None,
        "may_change": viewer.may_change(summary),
        "may_retry": known.over and known.state in ("FAILED", "REJECTED"),
    }


def _place_of(known: Known) -> dict[str, object]:
    """The run of a job and its step there; None for a job of its own, or where it is not known."""
    source = input_from_payload(known.record.block) if known.record is not None else None
    of = None if source is None else source.step
    return {"run": of.run if of else None, "step": of.step if of else None}


#: Numbers of jobs on one device that are compared.
SHARERS = (1, 2, 4, 8)


def cost_json(ran_s: float, memory_mib: int) -> dict[str, object]:
    """The cost of one run that held a device, alone or shared, by the formula of `report.cost`."""
    run = Comparison(cpu_s=ran_s, gpu_s=ran_s, memory_mib=memory_mib)
    return {
        "ran_s": ran_s,
        "memory_mib": memory_mib,
        "function_usd": run.cpu_usd,
        "device_usd": run.gpu_usd() - run.cpu_usd,
        "total_usd": run.gpu_usd(),
        "sharers": [{"sharers": count, "total_usd": run.gpu_usd(count)} for count in SHARERS],
        "prices": run.prices,
    }
