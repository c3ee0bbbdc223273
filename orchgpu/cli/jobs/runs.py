"""Output about runs of workflows: a line for each step that changes, the tree of a run, JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from contract.states import StepState
from corekit.cli.chart import BLOCKS
from corekit.cli.screen import Coloured, counted, echo, folded, output_glyphs
from corekit.cli.text import padded, printable
from corekit.decode import encode
from corekit.units import format_bytes
from fdl.graph.drawing import ASCII_BRANCHES, BRANCHES, text
from fdl.graph.graph import Edge, Graph, StorageNode
from fdl.graph.graph import Step as Node
from orchgpu.cli.jobs.report import NAME_WIDTH
from orchgpu.core.runs.records import InputFile
from orchgpu.core.runs.state import Step, StepJob
from orchgpu.core.runs.workflow import Feed
from orchgpu.jobs.runs import RunChange, SeenRun, StartedRun

#: Jobs of one step that are listed; JSON has all of them.
JOBS_SHOWN_MAX = 8


def run_graph(seen: SeenRun) -> Graph:
    """The graph of a run, with the state of each step in the place of its device."""
    workflow = seen.workflow
    entry = StorageNode(path=_path(workflow.input_bucket, workflow.input_prefix))
    folders = {
        (file.step, _path(file.bucket, file.key.rpartition("/")[0])): None for file in seen.files
    }
    return Graph(
        steps=tuple(
            Node(name=step.name, device=step_text(seen.state.steps[step.name]))
            for step in workflow.steps
        ),
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


def step_text(step: Step) -> str:
    """State, number of jobs, seconds and device of a step, for people."""
    jobs = f"{sum(job.ended for job in step.jobs)}/{len(step.jobs)} jobs"
    words = [step.state.value, jobs if len(step.jobs) > 1 else ""]
    seconds = step_seconds(step)
    words += ["" if seconds is None else f"{seconds:.1f} s", device_of(step)]
    return "  ".join(word for word in words if word)


def step_seconds(step: Step) -> float | None:
    """From the first start of its code to the last end of it; None before the first end."""
    times = [job.result.times for job in step.jobs if job.result is not None]
    starts = [one["EStart"] for one in times if "EStart" in one]
    ends = [one["EEnd"] for one in times if "EEnd" in one]
    return max(0.0, max(ends) - min(starts)) if starts and ends else None


def device_of(step: Step) -> str:
    """The devices that its jobs had, each once."""
    devices = [job.result.device for job in step.jobs if job.result is not None]
    return ", ".join(
        dict.fromkeys(f"{one.get('kind')} on {one.get('host')}" for one in devices if one)
    )


def echo_change(change: RunChange) -> None:
    """One line with the new state of a step, or of the run."""
    name = padded(printable(change.started.file.name), NAME_WIDTH)
    if change.step is None:
        echo(f"{name} ", Coloured(change.seen.state.state.value), f"  {change.seen.id}", err=True)
        return
    if change.step.state in (StepState.BLOCKED, StepState.READY):
        return
    state, _, rest = step_text(change.step).partition("  ")
    step = padded(printable(change.step.name), NAME_WIDTH)
    echo(f"{name} {step} ", Coloured(state), f"  {rest}" if rest else "", err=True)


def echo_run(seen: SeenRun) -> None:
    """The run as a tree of its steps, its jobs, its files, and the reason of its end."""
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
    for line in text(run_graph(seen), branches).splitlines():
        echo(printable(line))
    echo()
    for step in state.steps.values():
        _echo_jobs(step)
    for file in seen.files:
        echo(f"s3://{file.bucket}/{printable(file.key)}  {format_bytes(file.size)}")
    if state.reason != "NONE":
        detail = f": {printable(state.detail)}" if state.detail else ""
        echo(folded(f"{state.reason}{detail}"))


def _echo_jobs(step: Step) -> None:
    for job in step.jobs[:JOBS_SHOWN_MAX]:
        name = padded(printable(step.name), NAME_WIDTH)
        source = printable(job.files[0].key) if job.part else counted(len(job.files), "file")
        echo(f"{name} {job.id}  ", Coloured(job_state(job)), f"  {source}")
    if len(step.jobs) > JOBS_SHOWN_MAX:
        echo(f"{printable(step.name)}: {len(step.jobs) - JOBS_SHOWN_MAX} more jobs")


def job_state(job: StepJob) -> str:
    """The state of a step's job, as far as its run's objects show it."""
    if job.result is not None:
        return job.result.state
    return "ENDED" if job.ended else "-"


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


def run_json(seen: SeenRun) -> dict[str, object]:
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
        "steps": [_step_json(seen, step) for step in state.steps.values()],
        "files": [_file_json(file) for file in seen.files],
    }


def _step_json(seen: SeenRun, step: Step) -> dict[str, object]:
    feeds = next(one.feeds for one in seen.workflow.steps if one.name == step.name)
    return {
        "name": step.name,
        "after": list(dict.fromkeys(feed.step for feed in feeds)),
        "state": step.state.value,
        "reason": step.reason.value,
        "detail": step.detail,
        "seconds": step_seconds(step),
        "device": device_of(step),
        "jobs": [
            {
                "job_id": job.id,
                "state": job_state(job),
                "inputs": [_file_json(file) for file in job.files],
                "result": None if job.result is None else encode(job.result),
            }
            for job in step.jobs
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
    ended = sum(step.state.terminal for step in steps)
    running = [step.name for step in steps if step.state is StepState.STARTED]
    where = f"{ended}/{len(seen.state.steps)}" + (f" {', '.join(running)}" if running else "")
    reason = "" if seen.state.reason == "NONE" else seen.state.reason.value
    if not reason and seen.promised is not None:
        reason = seen.promised.word
    return (seen.id, seen.state.state.value, where, reason, seen.input)
