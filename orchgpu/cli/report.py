"""What is said about jobs: progress lines, the timeline by the paper's names, JSON.

RStart upload, NStart received, EStart user code starts, EEnd, NEnd result seen, REnd finished;
RLat = REnd-RStart, ELat = EEnd-EStart, DLat = EStart-RStart. All in seconds since RStart;
`wall_clock` has the same as seconds since the epoch. They come from three clocks: ours (RStart),
the scheduler's (NStart, NEnd, REnd) and the function's (the rest), which on one machine are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from contract.states import JobState
from corekit.units import format_bytes
from orchgpu.cli.follow import Followed
from orchgpu.cli.screen import coloured, printable

MOMENTS = ("RStart", "NStart", "EStart", "EEnd", "NEnd", "REnd")


def timeline(job: Followed) -> dict[str, Any]:
    """The moments that happened, in seconds since RStart; those that never came are None."""
    wall = _wall_clock(job)
    start_s = job.submitted.uploaded_s
    relative: dict[str, Any] = {
        name: None if at_s is None else round(at_s - start_s, 4) for name, at_s in wall.items()
    }
    relative["RLat"] = relative["REnd"]
    relative["DLat"] = relative["EStart"]
    relative["ELat"] = _difference(relative["EEnd"], relative["EStart"])
    relative["steps"] = {name: round(at_s - start_s, 4) for name, at_s in _steps(job)}
    relative["wall_clock"] = wall
    return relative


def _steps(job: Followed) -> list[tuple[str, float]]:
    """The states its record went through, in their order, with the wall clock of each."""
    times: Mapping[str, float] = job.record.times if job.record is not None else {}
    named = {state.value for state in JobState} | {"ENDED"}
    reached = [(name, at_s) for name, at_s in times.items() if name in named]
    return sorted(reached, key=lambda step: step[1])


def _wall_clock(job: Followed) -> dict[str, float | None]:
    steps: Mapping[str, float] = job.record.times if job.record is not None else {}
    code: Mapping[str, float] = job.result.times if job.result is not None else {}
    return {
        "RStart": job.submitted.uploaded_s,
        "NStart": steps.get("RECEIVED"),
        "EStart": code.get("EStart"),
        "EEnd": code.get("EEnd"),
        "NEnd": steps.get("COMMITTED"),
        "REnd": steps.get("ENDED"),
    }


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else round(later - earlier, 4)


def job_json(job: Followed) -> dict[str, Any]:
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


def say_nothing(_job: Followed) -> None:
    """For programs, which want one object and nothing before it."""


def say_progress(job: Followed) -> None:
    """One line about where a job is now."""
    state = coloured(job.where, job.where.ljust(9))
    why = "" if job.reason == "NONE" else f" {job.reason}"
    more = job.sentence or (job.device if job.state == JobState.RUNNING else "")
    line = f"{printable(job.submitted.file.name):<24} {state}{why}{'  ' + more if more else ''}"
    click.echo(line.rstrip(), err=True)


def say_outcome(job: Followed) -> None:
    """State, device, outputs and, for a failure, what the function last said."""
    why = "" if job.reason == "NONE" else f" ({job.reason})"
    source = printable(job.submitted.input)
    click.echo(f"\n{job.job_id}  {source}  {coloured(job.where)}{why}")
    if job.result is None:
        return
    device = job.result.device
    if device:
        click.echo(f"  on {device.get('host')}: {device.get('kind')} {device.get('model', '')}")
    for file in job.result.files:
        key = printable(str(file["key"]))
        click.echo(f"  {file['bucket']}/{key}  {format_bytes(int(file['size']))}")
    for note in job.result.notes:
        click.echo(f"  note: {printable(note)}")
    if not job.succeeded:
        click.echo(f"  {job.result.detail}")
        for line in job.result.log_tail.splitlines()[-10:]:
            click.echo(f"  | {line}")


def say_timeline(job: Followed) -> None:
    """Moments, latencies and the steps of the job's record, a line each."""
    times = timeline(job)
    moments = "  ".join(f"{name} {_seconds(times[name])}" for name in MOMENTS)
    click.echo(f"  {moments}")
    latencies = "  ".join(f"{name} {_seconds(times[name])}" for name in ("RLat", "DLat", "ELat"))
    click.echo(f"  {latencies}")
    if times["steps"]:
        steps = "  ".join(f"{name} {_seconds(at_s)}" for name, at_s in times["steps"].items())
        click.echo(f"  {steps}")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
