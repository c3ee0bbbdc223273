"""The messages of a workflow's queue, and those that start jobs of its steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from contract.run import RUN_ID
from contract.states import JobState
from corekit.values import Value
from orchgpu.core.routing import Ignored, InputEvent, Rejected, Several, StepOf, classify
from orchgpu.core.runs.records import InputFile
from orchgpu.core.runs.workflow import Workflow


class Advance(Value):
    """Fold this run again. `step`, `job` and `state` are hints: the job that has ended."""

    run: str
    step: str = ""
    job: str = ""
    state: str = ""
    token: str = ""  #: not empty: the message stays until the run has ended

    @property
    def failed(self) -> bool:
        """Whether it reports a job that ended without success."""
        return bool(self.job) and self.state != JobState.SUCCEEDED


#: A message of a workflow's queue; an InputEvent starts a run.
RunMessage = Advance | InputEvent | Ignored | Rejected | Several


def classify_run(body: str, workflow: Workflow) -> RunMessage:
    """The verdict on a message of a workflow's queue. Total: any string gives one."""
    advance = _advance(body)
    if advance is not None:
        return advance
    return classify(body, workflow)


def _advance(body: str) -> Advance | None:
    if '"advance"' not in body:
        return None
    try:
        value = json.loads(body)["orchgpu"]["advance"]
        fields = {name: value[name] for name in Advance.__struct_fields__ if name in value}
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    texts = all(isinstance(one, str) for one in fields.values())
    if not texts or not RUN_ID.fullmatch(str(fields.get("run"))):
        return None
    return Advance(**fields)


def advance_body(
    run: str, step: str = "", job: str = "", state: str = "", *, token: bool = False
) -> str:
    """The message that makes some orchestrator fold a run. Doubled, it is harmless."""
    hints = {"step": step, "job": job, "state": state, "token": "input" if token else ""}
    named = {name: value for name, value in hints.items() if value}
    return json.dumps({"orchgpu": {"advance": {"run": run, **named}}})


# ---------------------------------------------------------------------- jobs of steps


class JobFacts(Value):
    """The facts that every job of a step is given when its step starts."""

    stored_at_s: float  #: wall clock: the input of the run was stored
    dead_at_s: float | None = None  #: of a retry: see `InputEvent.dead_at_s`
    ready_at_s: float | None = None  #: wall clock: the last step before it had ended
    max_cost_usd: float | None = None  #: its share of what the run has left; None = no cap
    counts_cost: bool = False  #: the run has an objective of cost


def step_body(of: StepOf, file: InputFile, facts: JobFacts) -> str:
    """The message of a step's job, whose record names its only file or its list of files."""
    stored_at = datetime.fromtimestamp(facts.stored_at_s, UTC)
    source = InputEvent(
        bucket=file.bucket,
        key=file.key,
        version_id=file.version,
        etag=file.etag,
        size=file.size,
        event_name="ObjectCreated:Put",
        event_time=stored_at.isoformat(timespec="milliseconds"),
    )
    note: dict[str, object] = {"step": step_note(of)}
    if facts.dead_at_s is not None:
        note["dead_at"] = facts.dead_at_s
    if facts.ready_at_s is not None:
        note["ready_at"] = facts.ready_at_s
    if facts.max_cost_usd is not None:
        note["max_cost_usd"] = facts.max_cost_usd
    if facts.counts_cost:
        note["counts_cost"] = True
    return json.dumps({"orchgpu": note, **source.as_s3_event()})


def step_note(of: StepOf) -> Mapping[str, str]:
    fields = {name: getattr(of, name) for name in StepOf.__struct_fields__}
    return {name: value for name, value in fields.items() if value}
