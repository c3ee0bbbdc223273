"""`job.advance`: which functions start ahead of their device, and what a deploy makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.budget import Budget
from corekit.decode import decode_known
from corekit.errors import AppError
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.groups import deployed
from fdl.plan.resources import FunctionResource, Record
from orchgpu.core.function import Function
from tests.unit.fdl.definitions import AWS, CODE

TEXT = """\
functions:
  aws:
  - lambda: {name: f, init_script: run.sh, output: [{path: out-1/x}], timeout: 60%s}
    iam: {create: true}
%s
"""
IMAGE = "runtime: image, container: {image: 123456789012.dkr.ecr.eu-west-1.amazonaws.com/f:1}"
GPU, JOB = "    gpu: {}\n", "    job: {input: {path: in-1}%s}"


def text(advance: str = "", *, job: str = "", function: str = "", gpu: str = GPU) -> str:
    keys = job + (f", advance: {advance}" if advance else "")
    return TEXT % (function, gpu + JOB % keys)


def made(text: str) -> tuple[FunctionResource, dict[str, Any]]:
    """The function's resource, and the body of its record."""
    (function,) = deployed(parse(text))
    resources = desired(function, AWS, CODE, Budget()).resources
    (lambda_,) = (one for one in resources if isinstance(one, FunctionResource))
    (record,) = (one for one in resources if isinstance(one, Record))
    return lambda_, dict(record.body)


def warnings(text: str) -> list[str]:
    found = lint(parse(text), place=AWS)
    return [
        f"{one.path}: {one.message}"
        for one in found
        if one.severity is not Severity.NOTE and "advance" in one.path
    ]


@pytest.mark.parametrize(
    ("written", "wait_s"),
    [
        (text(), 30),
        (text("auto"), 30),
        (text("off"), 0),
        (text("false"), 0),
        (text("0"), 0),
        (text("12"), 12),
        (text("2m"), 120),
        (text("1.5"), 2),
        (text("auto", function=", reserved_concurrency: 4"), 0),
        (text("9", function=", reserved_concurrency: 4"), 9),
        (text("auto", function=f", {IMAGE}"), 0),
        (text("9", function=f", {IMAGE}"), 9),
        (text("auto", gpu="    gpu: {count: 2}\n"), 0),
        (text("9", gpu="    gpu: {count: 2}\n"), 0),
        (text("9", gpu=""), 0),
        (text("9", job=', completion: object, object: "out-1/x/{job}"'), 0),
    ],
)
def test_lambdas_timeout_has_room_for_the_wait(written: str, wait_s: int) -> None:
    function, record = made(written)
    assert function.timeout_s == 60 + wait_s
    assert function.variables.get("ORCHGPU_ADVANCE_S") == (str(wait_s) if wait_s else None)
    assert record.get("advance_s", 0.0) == wait_s


def test_times_of_a_job_are_those_of_the_declared_timeout() -> None:
    (_, off), (_, on) = made(text("off")), made(text("90"))
    assert off["timeout_s"] == on["timeout_s"] == 60.0
    assert off["request"] == on["request"]


@pytest.mark.parametrize(
    ("timeout_s", "advance", "wait_s"), [(880, "40", 20), (900, "40", 0), (880, "auto", 20)]
)
def test_the_wait_is_what_lambda_has_left(timeout_s: int, advance: str, wait_s: int) -> None:
    written = text(advance).replace("timeout: 60", f"timeout: {timeout_s}")
    function, record = made(written)
    assert function.timeout_s == timeout_s + wait_s
    assert record.get("advance_s", 0.0) == wait_s
    message = (
        f"functions.aws[0].job.advance: with lambda.timeout ({timeout_s} s) it is more than"
        f" Lambda's 900 s: the function waits for {wait_s} s"
    )
    assert warnings(written) == ([] if advance == "auto" else [message])


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (text("9", gpu=""), "its jobs need no device"),
        (text("9", gpu="    gpu: {count: 2}\n"), "jobs with several devices wait until all are"),
        (
            text("9", job=', completion: object, object: "out-1/x/{job}"'),
            "code that our runner does not run cannot wait for its device",
        ),
    ],
)
def test_a_wait_without_effect_is_named(written: str, why: str) -> None:
    (found,) = warnings(written)
    assert found.startswith(f"functions.aws[0].job.advance: no effect: {why}")


@pytest.mark.parametrize("written", ["on", "901", "-1", "[9]", "soon"])
def test_other_values_are_refused(written: str) -> None:
    with pytest.raises(AppError, match="advance"):
        parse(text(written))


def test_a_word_that_is_none_names_seconds_too() -> None:
    with pytest.raises(AppError, match="'soon' is not off, auto, or a duration such as 30 or 2m"):
        parse(text("soon"))


GROUP = """\
functions:
  aws:
  - lambda: {name: a, init_script: run.sh, timeout: 440, output: [{path: out-1/a}]}
    iam: {create: true}
    group: g
    gpu: {}
    job: {input: {path: in-1}, advance: 30}
  - lambda:
      name: b
      init_script: run.sh
      timeout: 440
      input: [{path: out-1/a}]
      output: [{path: out-1/b}]
    iam: {create: true}
    group: g
    gpu: {}
"""


def test_a_group_waits_once_and_has_the_time_of_all_its_steps() -> None:
    function, record = made(GROUP)
    assert (function.timeout_s, record["timeout_s"], record["advance_s"]) == (900, 880.0, 20.0)
    (found,) = warnings(GROUP)
    assert "(880 s)" in found


def test_an_orchestrator_reads_the_record() -> None:
    _, body = made(text("45"))
    body |= dict.fromkeys(("queue_url", "dead_letter_url", "completion_url"), "u")
    function, _ = decode_known(Function, body)
    assert (function.advance_s, function.timeout_s) == (45.0, 60.0)
