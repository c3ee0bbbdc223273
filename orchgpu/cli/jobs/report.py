"""Output about jobs: progress lines, the Gantt, the timeline with the paper's names, JSON.

The moments are those of `orchgpu.jobs.measures`, in seconds since RStart; `wall_clock` has the same
in seconds since the epoch. There are three clocks: this machine's (RStart), the scheduler's
(NStart, NEnd, REnd) and the function's (the rest); on one machine they are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from contract.states import JobState, Reason
from corekit.cli.gantt import Row
from corekit.cli.screen import Coloured, continued, counted, echo, folded, packed
from corekit.cli.table import Column
from corekit.cli.text import cells, padded, printable
from corekit.errors import EXIT_STATUS, ErrorCode
from corekit.units import format_bytes
from orchgpu.jobs.following import Followed
from orchgpu.jobs.intervals import LANES, NAMES, Interval
from orchgpu.jobs.measures import LATENCIES, MOMENTS, latencies, moments_of
from orchgpu.jobs.transfers import OutputFolder


def job_columns(when: Column) -> tuple[Column, ...]:
    """The columns of a list of jobs; `when`: the one with a time."""
    return (
        Column(name="JOB", ids=True, shrink_order=2),
        Column(name="FUNCTION", shrink_order=3, width_min=10, drop_order=3),
        Column(name="STATE"),
        Column(name="REASON", shrink_order=4, width_min=8, drop_order=4),
        Column(name="ATTEMPT", drop_order=1),
        when,
        Column(name="INPUT", shrink_order=1, width_min=14, keep="end", drop_order=2),
    )


def gantt_rows(found: Sequence[Interval], now_s: float) -> list[Row]:
    """One row per lane and name; an interval that lasts is drawn until now."""
    rows = []
    for lane in LANES:
        for name in NAMES[lane]:
            own = [one for one in found if (one.lane, one.name) == (lane, name)]
            if own:
                rows.append(_row(lane, name, own, now_s))
    return rows


def _row(lane: str, name: str, own: Sequence[Interval], now_s: float) -> Row:
    bars = tuple(
        (one.start_s, max(one.start_s, now_s) if one.end_s is None else one.end_s) for one in own
    )
    return Row(lane=lane, name=name, bars=bars, lasts=any(one.end_s is None for one in own))


#: Columns of the names of files.
NAME_WIDTH = 24
#: Ends a command when a job did not succeed; the job's own reason is in the output.
NOT_SUCCEEDED_STATUS = 1
#: The same when nothing failed but promises that were refused: as of the scheduler's own refusals.
_REFUSED_STATUS = {
    Reason.SLO_IMPOSSIBLE.value: EXIT_STATUS[ErrorCode.IMPOSSIBLE],
    Reason.NO_PROMISES.value: EXIT_STATUS[ErrorCode.CONFLICT],
    Reason.SLO_BUSY.value: EXIT_STATUS[ErrorCode.EXHAUSTED],
}


def ending_status(failed: Iterable[str]) -> int:
    """The status of a command that followed jobs or runs; `failed`: reasons of the unsuccessful."""
    statuses = {_REFUSED_STATUS.get(reason, NOT_SUCCEEDED_STATUS) for reason in failed}
    if NOT_SUCCEEDED_STATUS in statuses:
        return NOT_SUCCEEDED_STATUS
    return max(statuses, default=0)


def timeline(job: Followed) -> dict[str, object]:
    """The moments that happened, in seconds since RStart; the others are None."""
    start_s = job.submitted.uploaded_s
    steps = {name: round(at_s - start_s, 4) for name, at_s in _steps(job)}
    return {**relative_times(job), "steps": steps, "wall_clock": _wall_clock(job)}


def relative_times(job: Followed) -> dict[str, float | None]:
    """The same moments, and the latencies."""
    start_s = job.submitted.uploaded_s
    relative = {
        name: None if at_s is None else round(at_s - start_s, 4)
        for name, at_s in _wall_clock(job).items()
    }
    found = latencies(_wall_clock(job))
    return relative | {n: None if s is None else round(s, 4) for n, s in found.items()}


def _steps(job: Followed) -> list[tuple[str, float]]:
    """The states that the job's record went through, in order, with the wall-clock time of each."""
    times: Mapping[str, float] = job.record.times if job.record is not None else {}
    named = {state.value for state in JobState} | {"ENDED"}
    reached = [(name, at_s) for name, at_s in times.items() if name in named]
    return sorted(reached, key=lambda step: step[1])


def _wall_clock(job: Followed) -> dict[str, float | None]:
    steps: Mapping[str, float] = job.record.times if job.record is not None else {}
    code: Mapping[str, float] = job.result.times if job.result is not None else {}
    return moments_of(job.submitted.uploaded_s, steps, code)


def job_json(job: Followed) -> dict[str, object]:
    """One job as `demo --json` and `run --json` print it."""
    result = job.result
    return {
        "job_id": job.job_id,
        "function": job.submitted.function.name,
        "input": job.submitted.input,
        "state": job.state,
        "reason": job.reason,
        "detail": result.detail if result is not None else job.sentence,
        "notes": list(result.notes) if result is not None else [],
        "exit_code": result.exit_code if result is not None else None,
        "log_tail": result.log_tail if result is not None else "",
        "outputs": list(result.files) if result is not None else [],
        "device": dict(result.device) if result is not None else {},
        "timeline": timeline(job),
    }


def echo_nothing(_job: Followed) -> None:
    """Print nothing: with --json the output is one object."""


def echo_progress(job: Followed) -> None:
    """One line with the current state of a job."""
    why = "" if job.reason == "NONE" else f" {job.reason}"
    more = job.sentence or (job.device if job.state == JobState.RUNNING else "")
    name = printable(job.submitted.file.name)
    rest = f"{why}{'  ' + printable(more) if more else ''}"
    begun = f"{padded(name, NAME_WIDTH)} "
    column = cells(padded(begun + job.where, cells(begun) + 9))
    rest = continued(rest, column, err=True)
    echo(begun, Coloured(job.where, 9 if rest else 0), rest, err=True)


def echo_outcome(job: Followed, output: OutputFolder | None = None) -> None:
    """State, device, outputs with their files in `output`, notes and, for a failure, its log."""
    why = "" if job.reason == "NONE" else f" ({job.reason})"
    source = printable(job.submitted.input)
    echo(f"\n{job.job_id}  {source}  ", Coloured(job.where), why)
    if job.result is None:
        return
    device = job.result.device
    if device:
        echo(f"  on {device.get('host')}: {device.get('kind')} {device.get('model', '')}")
    for index, file in enumerate(job.result.files):
        to = None if output is None else output.file(job, index)
        where = "" if to is None or not to.is_file() else f"  -> {printable(str(to))}"
        place = f"{file['bucket']}/{printable(str(file['key']))}"
        echo(f"  {place}  {format_bytes(int(file['size']))}{where}")
    for note in job.result.notes:
        echo(folded(f"  note: {printable(note)}"))
    if not job.succeeded:
        echo(folded(f"  {printable(job.result.detail)}"))
        for line in job.result.log_tail.splitlines()[-10:]:
            echo("  | ", continued(line, 4))


def echo_outcomes(jobs: Sequence[Followed], output: OutputFolder | None = None) -> None:
    """Outcome and timeline of each job and, of several, a summary."""
    for job in jobs:
        echo_outcome(job, output)
        echo_timeline(job)
    if len(jobs) > 1:
        echo_summary(jobs, output)


def echo_summary(jobs: Sequence[Followed], output: OutputFolder | None = None) -> None:
    """Several jobs: their number by state, their outputs, the time of all."""
    states = Counter(job.where for job in jobs)
    files = [file for job in jobs for file in (job.result.files if job.result else ())]
    size = format_bytes(sum(int(file["size"]) for file in files))
    fetched = _fetched(jobs, output) if output is not None else ""
    words: list[str | Coloured] = [f"\n{counted(len(jobs), 'job')}:"]
    for state, count in states.most_common():
        words += [f" {count} ", Coloured(state), ","]
    echo(*words[:-1], f"; {counted(len(files), 'output')}, {size}{fetched}{_span(jobs)}")
    for job in jobs:
        if not job.succeeded:
            name = padded(printable(job.submitted.file.name), NAME_WIDTH)
            why = "" if job.reason == "NONE" else f" {job.reason}"
            echo(f"  {name} ", Coloured(job.where), f"{why}  {job.job_id}")


def _fetched(jobs: Sequence[Followed], output: OutputFolder) -> str:
    places = [output.file(job, index) for job in jobs for index in range(len(job.outputs))]
    count = sum(one.is_file() for one in places)
    return f", {count} of them fetched into {printable(str(output.path))}"


def _span(jobs: Sequence[Followed]) -> str:
    """The time from the first upload to the last known end."""
    times = [_wall_clock(job) for job in jobs]
    ends = [end for one in times if (end := one["REnd"]) is not None]
    begins = [begin for one in times if (begin := one["RStart"]) is not None]
    return f"; {max(ends) - min(begins):.1f} s" if ends and begins else ""


def echo_timeline(job: Followed) -> None:
    times = relative_times(job)
    for names in (MOMENTS, tuple(LATENCIES)):
        echo(packed([f"{name} {_seconds(times[name])}" for name in names], "  "))
    start_s = job.submitted.uploaded_s
    if steps := [f"{name} {_seconds(at_s - start_s)}" for name, at_s in _steps(job)]:
        echo(packed(steps, "  "))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
