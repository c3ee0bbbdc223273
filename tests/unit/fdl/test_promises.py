"""`slo` and `times`: reading, lint with its places, and what the records of a deploy say."""
# ruff: noqa: E501  (one line per message, as people see it)

from __future__ import annotations

import re

import pytest

from corekit.budget import Budget
from corekit.decode import decode
from corekit.errors import AppError
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.groups import deployed
from fdl.plan.placeholders import at_place
from fdl.plan.resources import Record, WorkflowRecord
from fdl.plan.workflows import desired_workflows
from gpu_scheduler.promises import Slo, StepTimes
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from tests.unit.fdl.definitions import CODE, LOCAL

READ = """\
functions:
  aws:
  - lambda: {name: cut, init_script: s, memory: 1024, input: [{path: photos/in}], output: [{path: photos/small}]}
  - lambda: {name: read, init_script: s, input: [{path: photos/small}], output: [{path: photos/words}]}
    gpu: {memory: 512, times: {cpu: {execution: 3s, loading: 1s}, "*": {execution: 1s, cost: 0.5}}}
"""
RUN = READ + "workflows:\n  words: {steps: [cut, read], slo: {latency: 20s, cost: 0.002}}\n"
ONE = """\
functions:
  aws:
  - lambda: {name: read, init_script: s, input: [{path: photos/in}], output: [{path: photos/words}]}
    gpu: {memory: 512, slo: {latency: 9s}}
"""
TIMES = {
    "cpu": StepTimes(execution_s=3.0, loading_s=1.0),
    "*": StepTimes(execution_s=1.0, cost_usd=0.5),
}


def findings(text: str) -> list[str]:
    return [note.text("f") for note in lint(parse(text, "f"), place=LOCAL)]


def records(text: str) -> dict[str, Record]:
    document = parse(text, "f")
    functions = [at_place(one, LOCAL) for one in deployed(document)]
    made = [desired(one, LOCAL, CODE, Budget()) for one in functions]
    made += desired_workflows(document, functions, LOCAL, Budget())
    return {part.name: part for one in made for part in one.resources if isinstance(part, Record)}


def test_objectives_and_times_reach_the_records() -> None:
    assert findings(RUN) == []
    found = records(RUN)
    body = dict(found["read"].body) | {
        name: "u" for name in found["read"].body if name.endswith("_url")
    }
    read = decode(Function, body)
    assert (read.slo, read.times, read.memory_mib) == (None, TIMES, 512)
    words = found["words"]
    assert isinstance(words, WorkflowRecord)
    body = dict(words.body) | {"queue_url": "u", "dead_letter_url": "u"}
    assert decode(Workflow, body).slo == Slo(latency_s=20.0, cost_usd=0.002)


def test_a_stated_way_reaches_the_record_with_and_without_a_device() -> None:
    text = RUN.replace("photos/small}]}\n", "photos/small}]}\n    job: {way: 1500ms}\n", 1)
    assert findings(text) == []
    assert records(text)["cut"].body["way_s"] == 1.5
    assert "way_s" not in records(RUN)["cut"].body
    promised = ONE + "    job: {way: 2s}\n"
    assert findings(promised) == []
    assert records(promised)["read"].body["way_s"] == 2.0


def test_a_function_has_an_objective_of_its_own() -> None:
    assert findings(ONE) == []
    assert records(ONE)["read"].body["slo"] == {"latency_s": 9.0, "cost_usd": None}


def test_without_objectives_the_records_say_nothing_of_them() -> None:
    body = records(ONE.replace(", slo: {latency: 9s}", ""))["read"].body
    assert "slo" not in body
    assert "times" not in body


def test_a_record_of_an_older_version_has_no_objectives() -> None:
    body = {
        name: value
        for name, value in records(ONE)["read"].body.items()
        if name not in ("slo", "memory_mib")
    }
    body |= {name: "u" for name in body if name.endswith("_url")}
    read = decode(Function, body)
    assert (read.slo, read.times, read.memory_mib) == (None, {}, 0)


#: A definition with one fault → its finding.
FAULTS = {
    RUN.replace(
        "small}], output: [{path: photos/words", "small, each: true}], output: [{path: photos/words"
    ): "f:4:71: error: functions.aws[1].lambda.input[0].each: a promise needs the number of jobs before a run begins: leave it out",
    RUN.replace(
        "gpu: {", "gpu: {slo: {latency: 1s}, "
    ): "f:5:11: error: functions.aws[1].gpu.slo: read is a step of the workflow words, whose runs are promised as a whole: write `slo` there",
    RUN.replace(
        "gpu: {", "gpu: {on_unavailable: requeue, max_wait: 5s, "
    ): "f:5:11: error: functions.aws[1].gpu.on_unavailable: a promised job has its device booked, or is refused at once: leave it out",
    ONE.replace(
        "slo:", "max_wait: 5s, slo:"
    ): "f:4:24: error: functions.aws[0].gpu.max_wait: a promised job waits for the device that is booked for it: leave it out",
    ONE.replace(
        "slo:", "count: 2, slo:"
    ): "f:4:24: error: functions.aws[0].gpu.count: a promised job has one device",
}


@pytest.mark.parametrize("text", FAULTS)
def test_what_cannot_be_promised_is_refused_with_its_line(text: str) -> None:
    assert FAULTS[text] in findings(text)


#: Values that are not valid → a part of the error.
INVALID = {
    ONE.replace("{latency: 9s}", "{}"): "slo needs latency_s, cost_usd or both",
    ONE.replace("slo: {latency: 9s}", "times: {cpu: {loading: 1s}}"): "execution",
    ONE.replace("{latency: 9s}", "{latncy: 9s}"): "latency",
}


@pytest.mark.parametrize("text", INVALID)
def test_a_wrong_objective_or_time_is_an_error(text: str) -> None:
    with pytest.raises(AppError, match=re.escape(INVALID[text])):
        parse(text, "f")
