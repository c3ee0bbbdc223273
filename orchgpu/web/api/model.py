"""The values that the API takes and answers, and how a job becomes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from contract.http_jobs import PREFIX, output_link, output_names, type_of
from contract.result import Result
from corekit.values import Meta, Value, replace
from orchgpu.core.function import Function
from orchgpu.jobs.joblog import Line
from orchgpu.jobs.known import Known
from orchgpu.jobs.outputs import JobOutput, output_of
from orchgpu.jobs.summary import JobSummary
from orchgpu.jobs.uploaded import Submitted
from orchgpu.web.stories import explanation_of, summary_of_known

#: The state of an input that is stored and that no orchestrator has received yet.
QUEUED = "QUEUED"


class InputReference(Value):
    """The JSON form of a request: an object that becomes the input."""

    input: Annotated[str, Meta(pattern="^s3://", max_length=1100)]  #: s3://bucket/key


class JobLinks(Value):
    """Paths of one job."""

    job: str
    events: str
    outputs: str


class JobEntry(Value):
    """One job as lists show it. Times are seconds since 1970."""

    id: str
    function: str | None
    state: str  #: a state of a job, or QUEUED: stored, and not received yet
    reason: str | None  #: of the state; None: none is needed
    over: bool  #: the state is the last one
    input: str | None  #: s3://bucket/key
    attempt: int  #: number of the newest one; 0: none yet
    submitted_s: float | None  #: upload of the input
    changed_s: float | None  #: newest change of the state
    device: str | None  #: for people
    links: JobLinks


class JobFile(Value):
    """One output file."""

    name: str  #: in the path of its link; unique in its job
    bytes: int
    content_type: str  #: by its name
    sha256: str  #: of its content; "" where it is not known
    url: str  #: s3://bucket/key
    link: str
    #: A small output that is the only one, in answers to `wait`; None: read the link.
    content: str | None = None
    encoding: str | None = None  #: of `content`: utf-8 or base64


class JobProgress(Value):
    """The newest report of a running job's code."""

    part: float | None  #: of the work, 0 to 1
    text: str
    at_s: float


class Job(JobEntry):
    """One job with its outcome."""

    waits: str | None = None  #: why it waits now
    progress: JobProgress | None = None  #: of a running job, if its code reports any
    exit_code: int | None = None
    detail: str = ""  #: one sentence about the end
    log_tail: str = ""
    document: dict[str, Any] | None = None  #: that the code wrote to RESULT_FILE
    outputs: tuple[JobFile, ...] = ()


class JobPage(Value):
    """Jobs, newest first."""

    jobs: tuple[JobEntry, ...]
    next: str | None  #: `after` of the next page; None: this is the last one


class JobFiles(Value):
    """The outputs of a job."""

    outputs: tuple[JobFile, ...]


class LogLine(Value):
    """One line about a job."""

    time_s: float
    stream: str  #: function, orchestrator, scheduler, queue or device
    text: str

    @classmethod
    def of(cls, line: Line) -> LogLine:
        return cls(time_s=line.at_s, stream=line.where, text=line.text)


#: Every value of the API, for its description.
VALUES: tuple[type[Value], ...] = (InputReference, Job, JobPage, JobFiles, LogLine)


def links_of(job: str) -> JobLinks:
    path = f"{PREFIX}jobs/{job}"
    return JobLinks(job=path, events=f"{path}/events", outputs=f"{path}/outputs")


def entry_of(job: JobSummary) -> JobEntry:
    return JobEntry(
        id=job.job,
        function=job.function,
        state=job.state,
        reason=None if job.reason == "NONE" else job.reason,
        over=job.over,
        input=None if job.input is None else f"s3://{job.input}",
        attempt=job.attempt,
        submitted_s=job.submitted_s,
        changed_s=job.changed_s,
        device=job.device,
        links=links_of(job.job),
    )


def queued(submitted: Submitted) -> Job:
    """A job whose input is stored and whose message was not received yet."""
    return Job(
        id=submitted.job_ids[0],
        function=submitted.function.name,
        state=QUEUED,
        reason=None,
        over=False,
        input=f"s3://{submitted.input}",
        attempt=0,
        submitted_s=submitted.uploaded_s,
        changed_s=None,
        device=None,
        links=links_of(submitted.job_ids[0]),
    )


def job_of(known: Known, submitted: Submitted | None) -> Job:
    """A job by all that is known of it; `submitted`: where its input was stored here."""
    if known.record is None and known.result is None and submitted is not None:
        return queued(submitted)
    entry, result, why = entry_of(summary_of_known(known)), known.standing, explanation_of(known)
    if submitted is not None:  # a record may be gone already
        entry = replace(entry, input=f"s3://{submitted.input}", submitted_s=submitted.uploaded_s)
    job = Job(
        **{name: getattr(entry, name) for name in JobEntry.__struct_fields__},
        waits=None if why is None else str(why["text"]),
        progress=_progress_of(known),
    )
    if result is None:
        return job
    return replace(
        job,
        exit_code=result.exit_code,
        detail=result.detail,
        log_tail=result.log_tail,
        document=result.document,
        outputs=tuple(file for file, _ in files_of(known)),
    )


def _progress_of(known: Known) -> JobProgress | None:
    if (found := known.progress) is None:
        return None
    return JobProgress(part=found.part, text=found.text, at_s=found.at_s)


def files_of(known: Known) -> list[tuple[JobFile, JobOutput]]:
    """The outputs of a job that its function declares, each under a name of its own."""
    if known.function is None or known.standing is None:
        return []
    found = _declared(known.function, known.standing)
    names = output_names([(output.bucket, output.key) for output, _ in found])
    files = []
    for name, (output, size) in zip(names, found, strict=True):
        file = JobFile(
            name=name,
            bytes=size,
            content_type=type_of(output.key),
            sha256=output.sha256,
            url=output.url,
            link=output_link(known.job, name),
        )
        files.append((file, output))
    return files


def _declared(function: Function, result: Result) -> Sequence[tuple[JobOutput, int]]:
    named = ((output_of(function, result.job_id, file), file.get("size")) for file in result.files)
    return [
        (output, size if isinstance(size, int) else 0)
        for output, size in named
        if output.is_declared
    ]
