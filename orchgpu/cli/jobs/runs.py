"""Output about runs of workflows: lines of steps that change, the tree and Gantt of a run, JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from contract.states import StepState
from corekit.cli.chart import BLOCKS
from corekit.cli.gantt import Row, gantt_lines
from corekit.cli.screen import (
    Coloured,
    counted,
    echo,
    folded,
    output_glyphs,
    terminal_width,
)
from corekit.cli.text import padded, printable
from corekit.decode import encode
from corekit.errors import AppError
from corekit.units import format_bytes
from fdl.graph.drawing import ASCII_BRANCHES, BRANCHES, text
from fdl.graph.graph import Edge, Graph, StorageNode
from fdl.graph.graph import Step as Node
from orchgpu.cli.jobs.report import NAME_WIDTH
from orchgpu.core.runs.records import InputFile
from orchgpu.core.runs.workflow import Feed
from orchgpu.history.measures import merged
from orchgpu.jobs.run_following import RunChange
from orchgpu.jobs.run_jobs import (
    NO_RECORDS,
    Records,
    SeenStep,
    records_of,
    steps_of,
    unread_jobs,
)
from orchgpu.jobs.runs import SeenRun, StartedRun
from orchgpu.jobs.scheduler import NO_ANSWER, ask, scheduler_or_none

#: Jobs of one step that are listed; JSON has all of them.
JOBS_SHOWN_MAX = 8
#: Columns of the Gantt without a terminal.
GANTT_WIDTH = 80


def run_graph(seen: SeenRun, records: Records = NO_RECORDS) -> Graph:
    """The graph of a run, with the state of each step in the place of its device."""
    workflow, now_s = seen.workflow, seen.facts.wall_s
    shown = {one.name: step_text(one, now_s) for one in steps_of(seen, records)}
    entry = StorageNode(path=_path(workflow.input_bucket, workflow.input_prefix))
    folders = {
        (file.step, _path(file.bucket, file.key.rpartition("/")[0])): None for file in seen.files
    }
    return Graph(
        steps=tuple(Node(name=step.name, device=shown[step.name]) for step in workflow.steps),
        edges=tuple(
            Edge(source=feed.step, target=step.name, place=_place(feed))
            for step in workflow.steps
            for feed in step.feeds
        ),
        entries=tuple((entry, step.name) for step in workflow.steps if not step.feeds),
        exits=tuple((step, StorageNode(path=place)) for step, place in folders),
    )


def _path(bucket: str, prefix: str) -> str:
    return f"{bucket}/{prefix}" if prefix else bucket


def _place(feed: Feed) -> StorageNode:
    return StorageNode(path=_path(feed.bucket, feed.prefix), suffixes=feed.suffixes)


def step_text(seen: SeenStep, now_s: float) -> str:
    """State, number of jobs, seconds and device of a step, for people."""
    step, several = seen.step, len(seen.jobs) > 1
    jobs = f"{seen.ended}/{len(seen.jobs)} jobs" if several else ""
    if several and seen.running:
        jobs += f", {seen.running} run"
    state = step.state.value
    if not several and seen.jobs and step.state is StepState.STARTED:
        state = seen.jobs[0].state if seen.jobs[0].state != "-" else state
    seconds = seen.seconds(now_s)
    words = [state, jobs, "" if seconds is None else f"{seconds:.1f} s", seen.devices]
    return "  ".join(word for word in words if word)


def echo_change(change: RunChange) -> None:
    """One line with the new state of a step, or of the run."""
    name = padded(printable(change.started.file.name), NAME_WIDTH)
    if change.step is None:
        echo(f"{name} ", Coloured(change.seen.state.state.value), f"  {change.seen.id}", err=True)
        return
    if change.step.state in (StepState.BLOCKED, StepState.READY):
        return
    seen = next(one for one in steps_of(change.seen) if one.name == change.step.name)
    state, _, rest = step_text(seen, change.seen.facts.wall_s).partition("  ")
    step = padded(printable(change.step.name), NAME_WIDTH)
    echo(f"{name} {step} ", Coloured(state), f"  {rest}" if rest else "", err=True)


def records_at(scheduler: str | None, seen: SeenRun) -> Records:
    """The scheduler's records of the jobs without a read result; none while it does not answer."""
    jobs, address = unread_jobs(seen), scheduler_or_none(scheduler)
    if not jobs or address is None:
        return NO_RECORDS
    try:
        return ask(address, lambda client: records_of(client, jobs))
    except AppError as error:
        if error.code not in NO_ANSWER:
            raise
        echo(f"orchgpu: {error.message}; jobs that run are not shown", err=True)
        return NO_RECORDS


def echo_run(seen: SeenRun, records: Records = NO_RECORDS) -> None:
    """The run as a tree and a Gantt of its steps, its jobs, its files, the reason of its end."""
    state = seen.state
    head = f"{seen.id}  {printable(seen.workflow.name)}  "
    tries = len(seen.facts.retries)
    after = f"  tried {tries + 1} times" if tries else ""
    echo(head, Coloured(state.state.value), f"  {seen.seconds:.1f} s{after}")
    promise = seen.promised
    if promise is not None:
        why = seen.facts.admission.why if seen.facts.admission is not None else "not asked for yet"
        echo(folded(f"{promise.sentence}; {printable(why)}"))
    echo(f"input s3://{printable(seen.input)}\n")
    branches = BRANCHES if output_glyphs() is BLOCKS else ASCII_BRANCHES
    for line in text(run_graph(seen, records), branches).splitlines():
        echo(printable(line))
    echo()
    steps = steps_of(seen, records)
    rows = step_rows(steps, seen.facts.wall_s)
    if lines := gantt_lines(rows, terminal_width() or GANTT_WIDTH, output_glyphs()):
        for line in (*lines, ""):
            echo(line)
    for step in steps:
        _echo_jobs(step)
    for file in seen.files:
        echo(f"s3://{file.bucket}/{printable(file.key)}  {format_bytes(file.size)}")
    if state.reason != "NONE":
        detail = f": {printable(state.detail)}" if state.detail else ""
        echo(folded(f"{state.reason}{detail}"))


def step_rows(steps: Sequence[SeenStep], now_s: float) -> list[Row]:
    """A row for each step whose code ran: the times at which any job of it did."""
    rows = []
    for step in steps:
        if spans := step.spans(now_s):
            bars, lasts = tuple(merged(spans)) or spans[:1], bool(step.running)
            rows.append(Row(lane=printable(step.name), name="", bars=bars, lasts=lasts))
    return rows


def _echo_jobs(step: SeenStep) -> None:
    files = (job.files for job in step.step.jobs)
    for job, given in islice(zip(step.jobs, files, strict=True), JOBS_SHOWN_MAX):
        name = padded(printable(step.name), NAME_WIDTH)
        source = printable(given[0].key) if len(given) == 1 else counted(len(given), "file")
        words = (job.reason, source, f"on {job.device}" if job.running and job.device else "")
        echo(f"{name} {job.id}  ", Coloured(job.state), *(f"  {one}" for one in words if one))
    if len(step.jobs) > JOBS_SHOWN_MAX:
        echo(f"{printable(step.name)}: {len(step.jobs) - JOBS_SHOWN_MAX} more jobs")


def echo_runs(runs: Sequence[SeenRun], fetched: Sequence[Path] = ()) -> None:
    """The tree of each run, and the files that were fetched."""
    for seen in runs:
        echo()
        echo_run(seen)
    for file in fetched:
        echo(f"-> {printable(str(file))}")


def echo_uploaded(run: StartedRun) -> None:
    """The id of a run whose input is stored, in case of a later failure."""
    name = padded(printable(run.file.name), NAME_WIDTH)
    echo(f"{name} uploaded: {run.run_ids[0]}", err=True)


def nothing(_: object) -> None:
    """Print nothing: with --json the output is one object."""


def on_change(*, as_json: bool) -> Callable[[RunChange], None]:
    return nothing if as_json else echo_change


def run_json(seen: SeenRun, records: Records = NO_RECORDS) -> dict[str, object]:
    """A run as data."""
    facts, state = seen.facts, seen.state
    return {
        "run_id": seen.id,
        "workflow": seen.workflow.name,
        "state": state.state.value,
        "over": seen.over,
        "reason": state.reason.value,
        "detail": state.detail,
        "input": seen.input,
        "started_at_s": facts.frozen.stored_at_s,
        "ended_at_s": facts.ended.ended_at_s if facts.ended is not None and seen.over else None,
        "seconds": round(seen.seconds, 3),
        "retries": len(facts.retries),
        "promised": None if seen.promised is None else seen.promised.as_json(),
        "admission": None if facts.admission is None else encode(facts.admission),
        "cancelled": facts.cancelled is not None,
        "steps": [_step_json(seen, step) for step in steps_of(seen, records)],
        "files": [_file_json(file) for file in seen.files],
    }


def _step_json(seen: SeenRun, shown: SeenStep) -> dict[str, object]:
    step = shown.step
    feeds = next(one.feeds for one in seen.workflow.steps if one.name == step.name)
    return {
        "name": step.name,
        "after": list(dict.fromkeys(feed.step for feed in feeds)),
        "state": step.state.value,
        "reason": step.reason.value,
        "detail": step.detail,
        "seconds": shown.seconds(seen.facts.wall_s),
        "device": shown.devices,
        "started_at_s": shown.start_s,
        "ended_at_s": shown.end_s,
        "jobs": [
            {
                "job_id": job.id,
                "state": one.state,
                "device": one.device,
                "started_at_s": one.start_s,
                "ended_at_s": one.end_s,
                "inputs": [_file_json(file) for file in job.files],
                "result": None if job.result is None else encode(job.result),
            }
            for job, one in zip(step.jobs, shown.jobs, strict=True)
        ],
    }


def _file_json(file: InputFile) -> dict[str, object]:
    return {
        "step": file.step,
        "bucket": file.bucket,
        "key": file.key,
        "version": file.version,
        "size": file.size,
    }


def summary_row(seen: SeenRun) -> tuple[str, ...]:
    """The cells of a run in a list: id, state, steps that ended, reason, input."""
    steps = seen.state.steps.values()
    running = [step.name for step in steps if step.state is StepState.STARTED]
    where = f"{seen.steps_ended}/{len(steps)}" + (f" {', '.join(running)}" if running else "")
    reason = "" if seen.state.reason == "NONE" else seen.state.reason.value
    if not reason and seen.promised is not None:
        reason = seen.promised.word
    return (seen.id, seen.state.state.value, where, reason, seen.input)
