"""`secrets:` of a definition: what is read, refused and deployed. References, never values."""
# ruff: noqa: E501  (one line per message, as people see it)

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from contract.secrets.reference import VARIABLE
from corekit.errors import AppError
from corekit.values import replace
from fdl.diagnostics import FileFacts, FileKind
from fdl.lint.lint import lint
from fdl.model import Function
from fdl.parse import parse
from fdl.plan.facts import Facts
from fdl.plan.functions import workload_of
from fdl.plan.groups import check, deployed
from fdl.plan.plan import Action, Step
from fdl.plan.resources import DeployTarget, FunctionResource, Record, Role, fields_of
from tests.unit.fdl.definitions import AWS, LOCAL, only, resources

FILES = {"run.sh": FileFacts(first_line=b"#!/bin/sh\n")}
KEY = "arn:aws:kms:eu-west-1:123456789012:key/1"
ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod/db-AbCdEf"


def text(secrets: str, rest: str = "", block: str = "") -> str:
    return f"""\
functions:
  aws:
  - lambda:
      name: f
      init_script: run.sh
      input: [{{path: inn/a}}]
      output: [{{path: out}}]
      {block}
    secrets: {secrets}
    {rest}
"""


def findings(
    definition: str,
    place: DeployTarget | None = LOCAL,
    files: Mapping[str, FileFacts] | None = None,
) -> list[str]:
    notes = lint(parse(definition, "f"), files={**FILES, **(files or {})}, place=place)
    return [note.text("f") for note in notes]


def function_of(definition: str) -> Function:
    return deployed(parse(definition, "f"))[0]


def test_each_form_is_shown_as_a_note() -> None:
    found = findings(
        text("{A: 'secretsmanager:db#user', B: ssm:/b, C: file:c}"), files={"c": FileFacts()}
    )
    assert found == [
        "f:9:15: note: functions.aws[0].secrets.A: read from secretsmanager:db#user when a run starts",
        "f:9:44: note: functions.aws[0].secrets.B: read from ssm:/b when a run starts",
        "f:9:55: note: functions.aws[0].secrets.C: read from file:c when a run starts",
    ]


BAD = {
    "{A: hunter2}": "f:9:18: error: functions.aws[0].secrets.A: not a reference to a secret: write secretsmanager:NAME, secretsmanager:NAME#KEY, ssm:NAME or file:PATH (the text is not shown, because it could be the secret itself)",
    "{A: 'secretmanager:hunter2'}": "f:9:18: error: functions.aws[0].secrets.A: not a reference to a secret: write secretsmanager:NAME, secretsmanager:NAME#KEY, ssm:NAME or file:PATH (the text is not shown, because it could be the secret itself); did you mean 'secretsmanager'?",
    "{A: 'ssm:'}": "f:9:18: error: functions.aws[0].secrets.A: names no secret: write ssm:NAME",
    "{A: [hunter2]}": "f:9:18: error: functions.aws[0].secrets.A: expected a reference to a secret",
    "{A: }": "f:9:17: error: functions.aws[0].secrets.A: expected a reference to a secret",
    "{1A: hunter2}": "f:9:15: error: functions.aws[0].secrets: a key here is not the name of a variable (letters, digits and _, not starting with a digit)",
    "hunter2": "f:9:14: error: functions.aws[0].secrets: expected a mapping of variables to references",
}


@pytest.mark.parametrize("secrets", BAD)
def test_a_bad_form_is_refused_without_its_text(secrets: str) -> None:
    with pytest.raises(AppError) as caught:
        parse(text(secrets), "f")
    assert caught.value.message == BAD[secrets]
    assert "hunter2" not in json.dumps(caught.value.details)


def test_all_bad_forms_are_reported_at_once() -> None:
    with pytest.raises(AppError) as caught:
        parse(text("{A: x, B: ssm:/b, C: y}"), "f")
    assert [line.split(": ")[2] for line in caught.value.message.splitlines()] == [
        "functions.aws[0].secrets.A",
        "functions.aws[0].secrets.C",
    ]


def test_no_secrets_are_none() -> None:
    assert function_of(text("")).secrets == {}
    assert function_of(text("{}")).references == ()


LINT: dict[str, tuple[str, DeployTarget | None, Mapping[str, FileFacts], str]] = {
    "variable of the script": (
        text("{A: ssm:/a}", block="container: {environment: {Variables: {A: x}}}"),
        LOCAL,
        {},
        "f:9:15: error: functions.aws[0].secrets.A: is in lambda.container.environment too; keep one",
    ),
    "variable of the process": (
        text("{A: ssm:/a}", block="environment: {Variables: {A: x}}"),
        LOCAL,
        {},
        "f:9:15: error: functions.aws[0].secrets.A: is in lambda.environment too; keep one",
    ),
    "ours": (
        text("{ORCHGPU_X: ssm:/a}"),
        LOCAL,
        {},
        "f:9:15: error: functions.aws[0].secrets.ORCHGPU_X: this name is reserved: the runner sets it",
    ),
    "set by the runner": (
        text("{EVENT: ssm:/a}"),
        LOCAL,
        {},
        "f:9:15: error: functions.aws[0].secrets.EVENT: this name is reserved: the runner sets it",
    ),
    "loader": (
        text("{LD_PRELOAD: ssm:/a}"),
        LOCAL,
        {},
        "f:9:15: error: functions.aws[0].secrets.LD_PRELOAD: decides which code the script runs, so no secret may have this name",
    ),
    "file on AWS": (
        text("{A: file:a}"),
        AWS,
        {"a": FileFacts()},
        "f:9:15: error: functions.aws[0].secrets.A: a function on AWS does not reach files of this machine: store the content with `orchgpu secret put ssm:/NAME --file FILE` and write ssm:/NAME",
    ),
    "no file": (
        text("{A: file:a}"),
        LOCAL,
        {},
        "f:9:15: error: functions.aws[0].secrets.A: 'a' does not exist (paths start at this file's folder)",
    ),
    "no file yet": (
        text("{A: file:a}"),
        None,
        {},
        "f:9:15: warning: functions.aws[0].secrets.A: 'a' does not exist (paths start at this file's folder)",
    ),
    "folder": (
        text("{A: file:a}"),
        LOCAL,
        {"a": FileFacts(kind=FileKind.FOLDER)},
        "f:9:15: error: functions.aws[0].secrets.A: 'a' is a folder, not a regular file (paths start at this file's folder)",
    ),
    "open file": (
        text("{A: file:a}"),
        LOCAL,
        {"a": FileFacts(open_to_others=True)},
        "f:9:15: warning: functions.aws[0].secrets.A: 'a' is readable by other users: chmod 600 a",
    ),
    "packed file": (
        text("{A: file:./files/a}", block="extra_payload: files"),
        LOCAL,
        {"./files/a": FileFacts(), "files": FileFacts(kind=FileKind.FOLDER)},
        "f:9:15: error: functions.aws[0].secrets.A: lies in extra_payload, so the function's package would hold it: move './files/a'",
    ),
    "foreign": (
        text(
            "{A: ssm:/a}",
            "job: {input: jobs/in, completion: object, object: 'out/{job}'}",
            "container: {image: a/b}",
        ),
        LOCAL,
        {},
        "f:9:5: error: functions.aws[0].secrets: our runner, which reads them, does not run this function's code: let the code read the store itself, by the function's role",
    ),
}


@pytest.mark.parametrize("case", LINT)
def test_finding(case: str) -> None:
    definition, place, files, expected = LINT[case]
    assert expected in findings(definition, place, files)


def test_credentials_may_be_secrets() -> None:
    found = findings(text("{AWS_SECRET_ACCESS_KEY: ssm:/a}"))
    assert [line for line in found if "note:" not in line] == []


# ---------------------------------------------------------------------- what is deployed

QUEUED = "job: {input: jobs/in}\n    gpu: {kinds: [cpu]}\n    iam: {create: true}"


def test_references_are_a_variable_of_the_function_and_in_nothing_that_jobs_carry() -> None:
    made = resources(text("{A: ssm:/a, B: 'secretsmanager:b#k'}", QUEUED))
    function = only(FunctionResource, made)
    assert json.loads(function.variables[VARIABLE]) == {
        "": {"A": "ssm:/a", "B": "secretsmanager:b#k"}
    }
    assert "ssm:/a" not in json.dumps(fields_of(only(Record, made)))


def test_a_function_without_secrets_is_as_before() -> None:
    assert VARIABLE not in _function("").variables


def statements(definition: str, facts: Facts | None = None) -> dict[str, list[str]]:
    role = only(Role, resources(definition, AWS, facts))
    return {
        action: statement["Resource"]
        for statement in role.policy["Statement"]
        for action in statement["Action"]
    }


def test_the_role_reads_exactly_these_entries() -> None:
    secrets = f"{{A: ssm:/a/b, B: 'ssm:c:3', C: secretsmanager:d, D: 'secretsmanager:d#k', E: '{'secretsmanager:' + ARN}'}}"
    allowed = statements(text(secrets, QUEUED))
    assert allowed["ssm:GetParameter"] == [
        "arn:aws:ssm:eu-west-1:123456789012:parameter/a/b",
        "arn:aws:ssm:eu-west-1:123456789012:parameter/c",
    ]
    assert allowed["secretsmanager:GetSecretValue"] == [
        "arn:aws:secretsmanager:eu-west-1:123456789012:secret:d-??????",
        ARN,
        f"{ARN}-??????",
    ]
    assert "kms:Decrypt" not in allowed
    none = statements(text("", QUEUED))
    assert not {"ssm:GetParameter", "secretsmanager:GetSecretValue"} & set(none)


def test_a_customers_key_is_allowed() -> None:
    facts = Facts(secret_keys={"ssm:/a": KEY})
    assert statements(text("{A: ssm:/a, B: ssm:/b}", QUEUED), facts)["kms:Decrypt"] == [KEY]


def test_the_workload_does_not_depend_on_secrets() -> None:
    function = function_of(text("{A: ssm:/a}", "gpu: {kinds: [cpu]}"))
    assert workload_of(function, "") == workload_of(replace(function, secrets={}), "")


GROUP = """\
functions:
  aws:
  - group: g
    lambda: {name: one, init_script: run.sh, input: [{path: inn/a}], output: [{path: mid/a}]}
    secrets: {A: ssm:/one, B: ssm:/both}
  - group: g
    lambda: {name: two, init_script: run.sh, input: [{path: mid/a}], output: [{path: out}]}
    secrets: {A: ssm:/two, B: ssm:/both}
  - group: g
    lambda: {name: three, init_script: run.sh, input: [{path: mid/b}], output: [{path: out}]}
"""


def test_steps_of_a_group_have_their_own_secrets() -> None:
    definition = GROUP.replace("mid/b", "mid/a/b")
    document = parse(definition, "f")
    assert not list(check(document))
    (function,) = deployed(document)
    made = only(FunctionResource, resources(definition))
    assert json.loads(made.variables[VARIABLE]) == {
        "one": {"A": "ssm:/one", "B": "ssm:/both"},
        "two": {"A": "ssm:/two", "B": "ssm:/both"},
    }
    assert [str(one) for one in function.references] == ["ssm:/one", "ssm:/both", "ssm:/two"]


def _function(secrets: str) -> FunctionResource:
    found: FunctionResource = only(FunctionResource, resources(text(secrets)))
    return found


def test_a_plan_shows_references() -> None:
    first, second = _function("{A: ssm:/a, B: ssm:/b}"), _function("{A: ssm:/x, C: ssm:/c}")
    create = Step(action=Action.CREATE, resource=first)
    assert create.sentence() == "+ function f: secret A from ssm:/a, secret B from ssm:/b"
    update = Step(action=Action.UPDATE, resource=second, before=first)
    assert update.sentence() == (
        "~ function f: variables (ORCHGPU_SECRETS), secret A from ssm:/x instead of ssm:/a,"
        " without secret B, secret C from ssm:/c"
    )
    assert Step(action=Action.DELETE, resource=first).sentence() == "- function f"
    plain = replace(first, variables={VARIABLE: "[]"})
    assert Step(action=Action.CREATE, resource=plain).sentence() == "+ function f"


@pytest.mark.parametrize(
    "wrong",
    [
        "    secret: {A: hunter2}",
        '    secrets:\n      A: "hunter2\n      B: ssm:/x',
        "    secrets:\n      A: ssm:/x\n      A: hunter2",
        "    secrets: {A: ssm:/x}\n    secrets: {A: hunter2}",
        "    lambda: {name: f, secrets: {A: hunter2}}",
    ],
    ids=["wrong key", "open quote", "twice", "block twice", "wrong block"],
)
def test_an_error_about_the_form_of_secrets_shows_no_value(wrong: str) -> None:
    with pytest.raises(AppError) as caught:
        parse(f"functions:\n  aws:\n  -\n{wrong}\n", "f")
    assert "error: " in caught.value.message
    assert "hunter2" not in caught.value.message


def test_an_error_elsewhere_shows_its_line() -> None:
    lines = "functions:\n  aws:\n  - secrets:\n      A: ssm:/x\n    lambda: {nam: f}\n"
    with pytest.raises(AppError, match=r"5 \|     lambda: \{nam: f\}"):
        parse(lines, "f")
