"""The steps of a function: its only one, or those of a group, run in sequence in this sandbox.

A file that a step writes to the input of another step goes there directly, never through S3; all
others are uploaded once every step has succeeded. A step runs once for each file it takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from contract.record import JsonObject
from contract.result import LOG_TAIL_BYTES_MAX
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed, RunnerError
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.sandbox import Workspace, input_name
from lambda_functions.gpu_runner.script import environment
from lambda_functions.gpu_runner.script.process import (
    Ending,
    Outcome,
    Signals,
    command_of,
    handler_command,
    run,
    script_error,
)
from lambda_functions.gpu_runner.script.resident import KEPT, Kept, Task
from lambda_functions.gpu_runner.secrets.values import Secrets
from lambda_functions.gpu_runner.storage import outputs
from lambda_functions.gpu_runner.storage.outputs import Destination, Upload, WrittenFile

#: Runs of steps in one job of a group; a larger fan-out belongs in separate functions.
RUNS_MAX = 1000
#: Files named in a note, and characters of each name: results are read whole.
_NAMED_MAX = 5
_NAME_CHARS_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One program, its inputs and the destinations of its files."""

    name: str  #: "" when the function is its only step
    script: Path | None = None
    handler: str = ""  #: module.function, in `folder`
    folder: Path = Path()
    container: bool = False  #: the command of the function's image runs, in place of a script
    inputs: tuple[Destination, ...] = ()  #: destinations whose files it takes; none for the first
    outputs: tuple[Destination, ...] = ()
    variables: Mapping[str, object] | None = None  #: None: those of the job

    def command(self) -> list[str]:
        """The argument list that runs it. Raises AttemptFailed(SCRIPT_ERROR)."""
        if self.container:
            return ["the image's command"]  # the host starts its order's: `confined.COMMAND`
        if self.handler:
            return handler_command(self.folder, self.handler)
        if self.script is None:
            raise script_error("the function was deployed without a script")
        return command_of(self.script)

    def takes(self, bucket: str, key: str) -> bool:
        """Whether an object is an input of this step."""
        return any(
            place.bucket == bucket
            and key.startswith(place.prefix + "/" if place.prefix else "")
            and key.endswith(place.suffixes or "")
            for place in self.inputs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An input of a step: a file with the key that it has, or would have, in S3."""

    step: Step
    file: Path
    key: str
    event: JsonObject
    workspace: Workspace  #: of this run alone


#: Runs one step on one item.
RunStep = Callable[[Item], Outcome]


def read_steps(root: Path, text: str) -> tuple[Step, ...]:
    """The steps of a group, from the file that deploy packed. Raises RunnerError."""
    try:
        return tuple(_step(root, value) for value in json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunnerError(
            f"the list of steps is not valid: {error!r}; deploy the function again"
        ) from None


def _step(root: Path, value: JsonObject) -> Step:
    script = value.get("script")
    return Step(
        name=str(value["name"]),
        script=root / str(script) if script else None,
        handler=str(value.get("handler") or ""),
        folder=root / str(value["folder"]),
        inputs=tuple(Destination.of(place) for place in value["inputs"]),
        outputs=tuple(Destination.of(place) for place in value["outputs"]),
        variables=dict(value["variables"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The outcome and the files of all steps together."""

    outcome: Outcome  #: of the first failed step, else of all
    uploads: tuple[Upload, ...]  #: complete only if the outcome is good
    unmatched: tuple[str, ...]  #: names of files that no output takes
    step: str  #: the one that ended last; "" for an only step
    calls: int | None = None  #: that an endpoint answered, which writes no output

    @property
    def notes(self) -> list[str]:
        """Unexpected facts about a run that succeeded, one sentence each."""
        count = len(self.unmatched)
        if self.calls is not None:
            return []
        if not self.uploads and not count:
            return ["no output was written"]
        if not count:
            return []
        shown = [_short(name) for name in self.unmatched[:_NAMED_MAX]]
        rest = f" and {count - len(shown)} more" if count > len(shown) else ""
        files = "1 file" if count == 1 else f"{count} files"
        none = "" if self.uploads else "; nothing was stored"
        return [f"{files} matched no output: {', '.join(shown)}{rest}{none}"]


def run_all(steps: Sequence[Step], first: Item, run: RunStep) -> Run:
    """Run the first item's step and all that follow from it, in the order in which files appear.

    Stops at the first run that did not end by itself with status 0. Raises AttemptFailed for
    outputs that cannot be taken.
    """
    if len(steps) > 1:
        first.workspace.share()
    waiting, done, uploads = deque([first]), list[tuple[Step, Outcome]](), list[Upload]()
    unmatched: list[str] = []
    while waiting:
        item = waiting.popleft()
        outcome = run(item)
        done.append((item.step, outcome))
        if not outcome.good:
            break
        with outcome_in_failure(outcome, item.step.name):
            for file in outputs.find(item.workspace.output, item.workspace.root):
                places, inner = _destinations(steps, item.step, file)
                if places:
                    uploads.append((file, places))
                elif not inner:
                    unmatched.append(file.name)
                for number, (step, place) in enumerate(inner, len(done) + len(waiting)):
                    if number >= RUNS_MAX:
                        raise AttemptFailed(Reason.OUTPUT_ERROR, f"over {RUNS_MAX} runs of steps")
                    waiting.append(_next(step, file, place, first, number))
    return Run(
        outcome=_together(done),
        uploads=tuple(uploads),
        unmatched=tuple(unmatched),
        step=done[-1][0].name,
    )


@contextlib.contextmanager
def outcome_in_failure(outcome: Outcome, step: str = "") -> Iterator[None]:
    """Failures after a run carry its exit code, log and times; `step` is named in the detail."""
    try:
        yield
    except AttemptFailed as failure:
        failure.exit_code, failure.log_tail = outcome.exit_code, outcome.log_tail
        failure.times = outcome.times
        failure.detail = f"step {step}: {failure.detail}" if step else failure.detail
        raise


def run_step(
    item: Item,
    limits: TimeLimits,
    variables: Mapping[str, object] | None,
    secrets: Secrets,
    *layers: Mapping[str, str],
    signals: Signals | None = None,
    kept: Kept = KEPT,
    task: Task = "job",
    on_part: Callable[[bytes], None] | None = None,
) -> Outcome:
    """Run the step of an item in its workspace.

    `variables`: the user's, for a step that declares none of its own; `layers` win over them,
    over the step's secrets and over SCAR's; `kept`, `task`, `on_part`: as of `run`. Raises
    AttemptFailed(SCRIPT_ERROR) and EnvelopeError.
    """
    declared = item.step.variables
    in_container = item.step.container
    base = environment.container_variables if in_container else environment.base_variables
    merged = environment.merged(
        base(item.workspace),
        environment.user_variables(variables if declared is None else declared),
        secrets.of(item.step.name),
        environment.scar_variables(
            item.workspace, input_file=item.file, key=item.key, event=item.event
        ),
        *layers,
        own_packages=not in_container,
    )
    outcome = run(
        item.step.command(),
        variables=merged,
        folder=item.workspace.root,
        deadline_s=limits.script_s,
        grace_s=limits.grace_s,
        signals=signals,
        masker=secrets.masker,
        kept=kept if kept.wanted and item.step.handler and not item.step.name else None,
        task=task,
        on_part=on_part,
    )
    if in_container and outcome.ending is Ending.OWN and outcome.status == -signal.SIGKILL:
        return replace(outcome, ending=Ending.MEMORY)
    return outcome


def check_outcome(outcome: Outcome, limits: TimeLimits, step: str = "") -> None:
    """Raises AttemptFailed unless the script (of `step`) ended by itself with exit status 0."""
    ran_s = outcome.ended_s - outcome.started_s
    script = f"the script of step {step}" if step else "the script"
    if outcome.ending is Ending.DEADLINE:
        raise AttemptFailed(
            limits.reason,
            f"{script} was stopped after {ran_s:.1f} s: {limits.origin}",
        )
    if outcome.ending is Ending.PREEMPTED:
        text = f"{script} was stopped after {ran_s:.1f} s: its device was taken away"
        raise AttemptFailed(Reason.PREEMPTED, text)
    if outcome.ending is Ending.MEMORY:
        text = f"{script} needed more memory than its container has: declare more of `memory`"
        raise AttemptFailed(Reason.OUT_OF_MEMORY, text)
    if outcome.ending is Ending.LOST:
        raise AttemptFailed(Reason.SESSION_LOST, f"{script} was stopped: its session was lost")
    if outcome.status < 0:
        hint = " (often: out of memory)" if outcome.status == -signal.SIGKILL else ""
        raise AttemptFailed(Reason.KILLED, f"{script} was ended by signal {-outcome.status}{hint}")
    if outcome.status > 0:
        raise AttemptFailed(Reason.EXIT_NONZERO, f"{script} exited with {outcome.status}")


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}…"


def _destinations(
    steps: Sequence[Step], by: Step, file: WrittenFile
) -> tuple[tuple[Destination, ...], list[tuple[Step, Destination]]]:
    """Destinations in S3 for a file, and the steps that take it instead."""
    places, inner = [], []
    for place in by.outputs:
        if not place.takes(file.name):
            continue
        takers = [step for step in steps if step.takes(place.bucket, place.key(file.name))]
        inner += [(step, place) for step in takers]
        if not takers:
            places.append(place)
    return tuple(places), inner


def _next(step: Step, file: WrittenFile, place: Destination, first: Item, number: int) -> Item:
    workspace = first.workspace.part(number)
    key = place.key(file.name)
    target = workspace.input / input_name(key)
    try:
        os.link(file.path.resolve(), target)
    except OSError:  # no links here, or too many of them
        shutil.copyfile(file.path, target)
    return Item(
        step=step,
        file=target,
        key=key,
        workspace=workspace,
        event=_event(place.bucket, key, target.stat().st_size, first.event),
    )


def _event(bucket: str, key: str, size: int, cause: JsonObject) -> JsonObject:
    """The event that S3 would have sent for the file."""
    records = cause.get("Records") or [{}]
    entry = {"key": quote(key, safe="/!-_.*'()"), "size": size}
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "eventTime": records[0].get("eventTime", ""),
        "s3": {"s3SchemaVersion": "1.0", "bucket": {"name": bucket}, "object": entry},
    }
    return {"Records": [record]}


def _together(done: Sequence[tuple[Step, Outcome]]) -> Outcome:
    """The last outcome, with the first one's start and the logs of all."""
    (_, first), (_, last) = done[0], done[-1]
    if len(done) == 1:
        return last
    log = "".join(
        f"[{step.name}]\n{outcome.log_tail}" + ("" if outcome.log_tail.endswith("\n") else "\n")
        for step, outcome in done
    )
    tail = log.encode()[-LOG_TAIL_BYTES_MAX:].decode("utf-8", "ignore")
    return Outcome(
        ending=last.ending,
        status=last.status,
        started_s=first.started_s,
        ended_s=last.ended_s,
        log_tail=tail,
    )
