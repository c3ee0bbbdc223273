"""The steps of a function: one, or those of a group, run one after the other in this sandbox.

What a step writes where another one's input is, goes to that one as a file and never through S3;
all else goes up once every step has ended well. A step runs once for each file it takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from contract.result import LOG_TAIL_BYTES_MAX, OutputFile
from contract.states import Reason
from lambda_functions.gpu_runner import outputs
from lambda_functions.gpu_runner.command import command_of, handler_command, script_error
from lambda_functions.gpu_runner.errors import AttemptFailed, RunnerError
from lambda_functions.gpu_runner.outputs import Destination, Found
from lambda_functions.gpu_runner.script import Outcome
from lambda_functions.gpu_runner.workspace import Workspace, input_name

#: Calls of steps for one job of a group: more is a fan-out that belongs into functions.
RUNS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One program with what it takes and where its files go."""

    name: str  #: "" when the function is its only step
    script: Path | None = None
    handler: str = ""  #: module.function, in `folder`
    folder: Path = Path()
    inputs: tuple[Destination, ...] = ()  #: places whose objects it takes; of the first step: none
    outputs: tuple[Destination, ...] = ()
    variables: Mapping[str, Any] | None = None  #: None: those that came with the job

    def command(self) -> list[str]:
        """What runs it. Raises AttemptFailed(SCRIPT_ERROR)."""
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
    event: Mapping[str, Any]
    workspace: Workspace  #: its folders are this run's


#: A note names so many files, each by so much of its name: a result is read whole.
_NAMED_MAX = 5
_NAME_CHARS_MAX = 80


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}…"


#: Runs one step on one item.
RunStep = Callable[[Item], Outcome]
#: Uploads files to places, one by one.
Store = Callable[[Sequence[Found], Sequence[Destination]], Iterator[OutputFile]]


def read_steps(root: Path, text: str) -> tuple[Step, ...]:
    """Those of a group, from the file that deploy packed. Raises RunnerError."""
    try:
        return tuple(_step(root, value) for value in json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunnerError(f"the list of steps is none: {error!r}; deploy it again") from None


def _step(root: Path, value: Mapping[str, Any]) -> Step:
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
class Product:
    """A file that goes up, and where."""

    file: Found
    places: tuple[Destination, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How all steps together ended, and what they made."""

    outcome: Outcome  #: of the first that failed, else of all
    products: tuple[Product, ...]  #: complete only if it is good
    unclaimed: tuple[str, ...]  #: names of files that pass the filters of no output
    step: str  #: the one that ended last

    @property
    def notes(self) -> list[str]:
        """What people may not expect of a run that succeeded, a sentence each."""
        count = len(self.unclaimed)
        if not self.products and not count:
            return ["no output was written"]
        if not count:
            return []
        shown = [_short(name) for name in self.unclaimed[:_NAMED_MAX]]
        rest = f" and {count - len(shown)} more" if count > len(shown) else ""
        files = "1 file" if count == 1 else f"{count} files"
        none = "" if self.products else "; nothing was stored"
        return [f"{files} passed no output: {', '.join(shown)}{rest}{none}"]

    def stored(
        self, store: Callable[[Sequence[Found], Sequence[Destination]], Iterator[Any]]
    ) -> Any:
        """Hand every product to `store`, one by one."""
        for product in self.products:
            yield from store([product.file], product.places)


def run_all(steps: Sequence[Step], first: Item, run: RunStep) -> Run:
    """Run the first item's step and all that follow from it, in the order in which files appear.

    Stops at the first run that did not end by itself with status 0. Raises AttemptFailed for
    outputs that cannot be taken.
    """
    waiting, done, products = deque([first]), list[tuple[Step, Outcome]](), list[Product]()
    unclaimed: list[str] = []
    while waiting:
        item = waiting.popleft()
        outcome = run(item)
        done.append((item.step, outcome))
        if not outcome.good:
            break
        with _told(item.step, outcome):
            for file in outputs.find(item.workspace.output, item.workspace.root):
                places, inner = _ways(steps, item.step, file)
                if places:
                    products.append(Product(file=file, places=places))
                elif not inner:
                    unclaimed.append(file.name)
                for number, (step, place) in enumerate(inner, len(done) + len(waiting)):
                    if number >= RUNS_MAX:
                        raise AttemptFailed(Reason.OUTPUT_ERROR, f"over {RUNS_MAX} runs of steps")
                    waiting.append(_next(step, file, place, first, number))
    return Run(
        outcome=_together(done),
        products=tuple(products),
        unclaimed=tuple(unclaimed),
        step=done[-1][0].name,
    )


@contextlib.contextmanager
def _told(step: Step, outcome: Outcome) -> Iterator[None]:
    """A failure of a step's files carries what the step said."""
    try:
        yield
    except AttemptFailed as failure:
        failure.exit_code, failure.log_tail = outcome.exit_code, outcome.log_tail
        failure.times = outcome.times
        failure.detail = f"step {step.name}: {failure.detail}" if step.name else failure.detail
        raise


def _ways(
    steps: Sequence[Step], by: Step, file: Found
) -> tuple[tuple[Destination, ...], list[tuple[Step, Destination]]]:
    """Places in S3 for a file, and steps that take it instead."""
    places, inner = [], []
    for place in by.outputs:
        if not place.takes(file.name):
            continue
        takers = [step for step in steps if step.takes(place.bucket, place.key(file.name))]
        inner += [(step, place) for step in takers]
        if not takers:
            places.append(place)
    return tuple(places), inner


def _next(step: Step, file: Found, place: Destination, first: Item, number: int) -> Item:
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


def _event(bucket: str, key: str, size: int, cause: Mapping[str, Any]) -> dict[str, Any]:
    """What S3 would have said, had the file gone through it."""
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
    """The last outcome decides; its times begin with the first, its log has every step's."""
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
