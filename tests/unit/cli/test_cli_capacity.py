"""Notes about a definition by the answers of a scheduler."""

from __future__ import annotations

from fdl.diagnostics import Severity
from fdl.parse import parse
from fdl.plan.groups import deployed
from gpu_scheduler.verdicts import Explanation
from orchgpu.cli.definition.capacity import _in_lambda, _infeasible, _requests

TEXT = """\
functions:
  aws:
  - lambda: {name: f, init_script: a, input: [{path: one}]}
    gpu: {memory: 64, on_unavailable: cpu}
    execution: auto
"""
LACKS = Explanation(
    devices_known=1,
    devices_fitting=0,
    counts={},
    position=None,
    largest_fit="",
    sentence="no host has the program function-runner",
)


def test_auto_without_a_host_that_could_run_it_is_named() -> None:
    document = parse(TEXT)
    (function,) = deployed(document)
    asked = _requests(function)
    assert [one.programs for one in asked] == [(), (), ("function-runner",)]
    (note,) = _in_lambda(document, function, [None, None, LACKS])
    assert (note.severity, note.path) == (Severity.WARNING, "functions.aws[0].execution")
    assert note.message == (
        "all its jobs run in Lambda: no known host could run it: no host has the program"
        " function-runner"
    )
    assert note.at is not None
    assert list(_in_lambda(document, function, [None, None, None])) == []
    assert list(_in_lambda(document, function, [LACKS, None, LACKS])) == []


def test_the_place_of_auto_is_not_taken_for_a_fallback() -> None:
    document = parse(TEXT.replace(", on_unavailable: cpu", ""))
    (function,) = deployed(document)
    (note,) = _infeasible(document, function, [LACKS, LACKS])
    assert note.severity is Severity.ERROR
    assert "fallback" not in note.message
