"""Findings that name the written value and the one to write: times, filters, variables."""

import time

import pytest

from contract.timing import kept_back
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.groups import deployed
from lambda_functions.gpu_runner.limits import TimeLimits

FUNCTION = (
    "functions:\n  aws:\n  - lambda:\n      name: f\n      init_script: s\n"
    "      input: [buc/in]\n      output: [buc/out]\n"
)


def findings_of(more: str) -> list[str]:
    notes = lint(parse(FUNCTION + more, "f"))
    return [f"{note.severity}: {note.path}: {note.message}" for note in notes]


def test_a_short_timeout_is_reported_with_the_scripts_share() -> None:
    """The key that is named is the one that was written, `timeout`."""
    (note,) = findings_of("      timeout: 8\n")
    assert note == (
        "warning: functions.aws[0].lambda.timeout: the script is stopped after 4 s of these 8 s:"
        " half is kept for uploading its outputs; write 18 for a script that needs 8 s"
    )
    (note,) = findings_of("      timeout: 15\n")
    assert "stopped after 7.5 s of these 15 s" in note
    assert findings_of("      timeout: 20\n") == []


def test_a_threshold_that_was_written_is_named() -> None:
    (note,) = findings_of("      timeout: 8\n      container: {timeout_threshold: 9}\n")
    assert note == (
        "error: functions.aws[0].lambda.container.timeout_threshold: leaves the script no time:"
        " the function's timeout is 8 s"
    )
    assert findings_of("      timeout: 20\n      container: {timeout_threshold: 2}\n") == []


@pytest.mark.parametrize("whole_s", [1, 4, 8, 15, 20, 60, 300, 900])
@pytest.mark.parametrize("threshold_s", [0, 2, 10, 100])
def test_lint_reports_the_time_that_the_runner_reserves(whole_s: int, threshold_s: int) -> None:
    kept_s, rule = kept_back(whole_s, threshold_s)
    before_s = time.monotonic()
    left = TimeLimits.within(whole_s, threshold_s)
    assert left.end_s - left.script_s == pytest.approx(kept_s, abs=1e-6)
    assert left.end_s >= before_s + whole_s
    assert rule in ("half", "timeout_threshold", "minimum", "part")


def test_the_rule_by_which_time_is_reserved() -> None:
    rules = [kept_back(*times)[1] for times in ((8, 10), (60, 10), (20, 0), (900, 10))]
    assert rules == ["half", "timeout_threshold", "minimum", "part"]


FILTERS = {
    "output: [{path: out, suffix: ['*.txt']}]": "matches no usual name; write '.txt'",
    "output: [{path: out, prefix: 'res*'}]": "write 'res'",
    "output: [{path: out, suffix: 'a*b'}]": "leave it out",
    "output: [{path: out, suffix: '*'}]": "leave it out",
}


@pytest.mark.parametrize("place", FILTERS)
def test_a_filter_in_the_shells_words_is_warned_of(place: str) -> None:
    text = FUNCTION.replace("output: [buc/out]", place)
    (note,) = [n.text("f") for n in lint(parse(text, "f")) if "literally" in n.message]
    assert "warning: functions.aws[0].lambda.output[0]." in note
    assert note.endswith(FILTERS[place])


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "BASH_ENV", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "PATH", "ENV"]
)
def test_variables_that_do_more_than_have_a_value_are_warned_of(name: str) -> None:
    notes = findings_of(f"      container: {{environment: {{Variables: {{{name}: x}}}}}}\n")
    path = f"functions.aws[0].lambda.container.environment.Variables.{name}"
    assert [note for note in notes if note.startswith(f"warning: {path}: ")]
    assert not [note for note in notes if note.startswith(Severity.ERROR)]


def test_a_library_path_is_the_users_own_business() -> None:
    """Clients of other middlewares need it: the paper's own file sets it."""
    assert (
        findings_of("      container: {environment: {Variables: {LD_LIBRARY_PATH: /opt/x}}}\n")
        == []
    )


def test_variables_that_load_code_into_the_runner_give_a_warning() -> None:
    (note,) = findings_of("      environment: {Variables: {LD_PRELOAD: /opt/x.so}}\n")
    path = "functions.aws[0].lambda.environment.Variables.LD_PRELOAD"
    assert note == f"warning: {path}: loads code into the function's runner and the script"
    assert findings_of("      environment: {Variables: {PATH: /opt/bin}}\n") == []


def test_data_and_programs_that_are_named_twice() -> None:
    one, two = f"p@sha256:{'0' * 64}", f"p@sha256:{'1' * 64}"
    job = "    job: {input: [jobs/in]}\n"
    text = FUNCTION.replace("      input: [buc/in]\n", "")
    notes = lint(parse(f"{text}    gpu:\n      data: [p, {one}, {two}, p]\n{job}", "f"))
    assert [
        ((note.at.line, note.at.column), note.severity, note.path, note.message) for note in notes
    ] == [
        (
            (8, 92),
            Severity.ERROR,
            "functions.aws[0].gpu.data[2]",
            "p is named with another content before: no host has both",
        ),
        ((8, 167), Severity.WARNING, "functions.aws[0].gpu.data[3]", "p is named twice"),
    ]
    notes = lint(parse(f"{text}    gpu:\n      programs: [a, b, {one}]\n{job}", "f"))
    assert notes == ()


def test_the_steps_of_a_group_need_the_data_of_all() -> None:
    """See `fdl/plan/groups.py`."""
    step = (
        "  - lambda:\n      name: {0}\n      init_script: {0}.sh\n      {2}output: [buc/{1}]\n"
        "    group: g\n    gpu: {{data: {3}, programs: blast}}\n"
    )
    job = "    job: {input: [jobs/in]}\n"
    first = step.format("a", "mid", "", "[p, q]") + job
    second = step.format("b", "end", "input: [buc/mid]\n      ", "[q, r]")
    (group,) = deployed(parse(f"functions:\n  aws:\n{first}{second}", "f"))
    assert group.gpu is not None
    request = group.gpu.request
    assert (request.data, request.programs) == (("p", "q", "r"), ("blast",))
