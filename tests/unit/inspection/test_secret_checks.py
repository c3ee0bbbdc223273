"""Checks of secrets: entries that exist and can be read, in an account and on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.secrets.reference import SecretReference
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import Request
from orchgpu.cli.commands.operation.doctor import secret_problems
from orchgpu.core.function import Function as Served
from orchgpu.inspection.model import Inspected, Verdict
from orchgpu.inspection.subject import deployed
from orchgpu.permissions.model import Scope
from orchgpu.permissions.roles import role_kind
from tests.aws_account import FDL, PLACE, Account, function, refused, subject

GOOD, WARNING, UNKNOWN, WRONG = Verdict.GOOD, Verdict.WARNING, Verdict.UNKNOWN, Verdict.WRONG
ROLE = f"arn:aws:iam::{PLACE.account}:role/search"
SECRET_ARN = f"arn:aws:secretsmanager:eu-west-1:{PLACE.account}:secret:db-AbCdEf"
NAMED = "    secrets: {A: ssm:/a, B: 'secretsmanager:db#user', C: file:c}\n"


def with_secrets(text: str = NAMED, role: str = "") -> dict[str, Any]:
    found = Inspected(function=function(FDL + text), deployed=False, role=role)
    return {"functions": (found,)}


def entries(**changes: Any) -> Account:
    """An account in which both entries exist."""
    parameter = {"Name": "/a", "Type": "SecureString", "KeyId": "alias/aws/ssm"}
    secret = {"ARN": SECRET_ARN, "Name": "db", "VersionIdsToStages": {"v" * 32: ["AWSCURRENT"]}}
    return Account(
        {
            "ssm.DescribeParameters": {"Parameters": [parameter]},
            "secretsmanager.DescribeSecret": secret,
            **changes,
        }
    )


def only(account: Account, role: str = "") -> tuple[Verdict, str, str]:
    """The one finding that is not good."""
    found = account.findings("secrets", subject(**with_secrets(role=role)))
    [finding] = [one for one in found if one.verdict is not GOOD]
    return finding.verdict, finding.where, f"{finding.message} → {finding.remedy}"


def test_entries_that_exist_are_good() -> None:
    account = entries()
    assert account.verdicts("secrets", subject(**with_secrets())) == [GOOD, GOOD]
    assert [call.operation for call in account.calls] == ["DescribeParameters", "DescribeSecret"]


def test_no_content_is_read_and_the_doctor_may_make_every_call() -> None:
    account = entries()
    account.findings("secrets", subject(**with_secrets(role=ROLE)))
    [statement] = role_kind("doctor").statements(Scope(place=PLACE))
    assert {call.action for call in account.calls} <= set(statement.actions)


ABSENT: dict[str, tuple[dict[str, Any], str]] = {
    "parameter": (
        {"ssm.DescribeParameters": {"Parameters": []}},
        "does not exist in this account and region → orchgpu secret put ssm:/a",
    ),
    "secret": (
        {
            "secretsmanager.DescribeSecret": refused(
                "ResourceNotFoundException", ErrorCode.NOT_FOUND
            )
        },
        "does not exist in this account and region → orchgpu secret put secretsmanager:db",
    ),
    "deleted": (
        {"secretsmanager.DescribeSecret": {"ARN": SECRET_ARN, "DeletedDate": 1}},
        "does not exist in this account and region → orchgpu secret put secretsmanager:db",
    ),
}


@pytest.mark.parametrize("case", ABSENT)
def test_what_is_missing_is_found(case: str) -> None:
    answers, expected = ABSENT[case]
    verdict, where, text = only(entries(**answers))
    assert (verdict, text) == (WRONG, expected)
    assert where.startswith("function search, ")


def test_a_forbidden_description_is_unknown() -> None:
    account = entries(**{"ssm.DescribeParameters": refused("AccessDeniedException")})
    verdict, _, text = only(account)
    assert (verdict, "ssm:DescribeParameters" in text) == (UNKNOWN, True)


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("ssm:GetParameter", f"arn:aws:ssm:eu-west-1:{PLACE.account}:parameter/a"),
        ("secretsmanager:GetSecretValue", SECRET_ARN),
    ],
)
def test_the_role_of_a_function_is_simulated_on_the_entry_itself(
    action: str, resource: str
) -> None:
    account = entries()
    account.denied = {action}
    verdict, _, text = only(account, ROLE)
    assert verdict is WRONG
    assert f"allow {action} on {resource} in that role" in text


def test_entries_of_other_accounts_are_not_looked_at() -> None:
    arn = "arn:aws:ssm:us-east-1:210987654321:parameter/x"
    account = entries()
    text = f"    secrets: {{A: 'ssm:{arn}'}}\n"
    assert account.verdicts("secrets", subject(**with_secrets(text))) == [UNKNOWN]
    assert account.calls == []


def test_the_policy_of_a_role_is_simulated_without_its_secrets() -> None:
    account = entries()
    account.denied = {"ssm:GetParameter", "secretsmanager:GetSecretValue"}
    found = account.findings("function_policy", subject(**with_secrets(role=ROLE)))
    assert (found[-1].verdict, "may do all of it" in found[-1].message) == (GOOD, True)


def test_a_deployed_function_shows_its_references_and_its_declared_timeout() -> None:
    secrets = {"": {"A": "ssm:/a"}, "step": {"A": "vault:new", "B": "ssm:/b"}}
    settings = {
        "FunctionName": "search",
        "MemorySize": 512,
        "Timeout": 75,
        "Runtime": "python3.12",
        "Role": ROLE,
        "Environment": {"Variables": {"ORCHGPU_SECRETS": json.dumps(secrets)}},
    }
    served = Served(
        name="search",
        queue_url="http://q/search-jobs",
        dead_letter_url="http://q/search-dlq",
        completion_url="http://q/search-done",
        input_bucket="in",
        intermediate_bucket="mid",
        request=Request(),
        timeout_s=30.0,
        advance_s=45.0,
        revision="1",
    )
    account = Account({"lambda.GetFunctionConfiguration": settings})
    found = deployed(served, account)
    assert [str(one) for one in found.function.references] == ["ssm:/a", "ssm:/b"]
    assert found.function.function.timeout_s == 30


# ---------------------------------------------------------------------- `orchgpu doctor`


class Known:
    """Stores that have these entries."""

    def __init__(self, *references: str, denied: bool = False) -> None:
        self._references, self._denied = references, denied

    def exists(self, reference: SecretReference) -> bool:
        if self._denied:
            raise AppError(ErrorCode.DENIED, "no")
        return str(reference) in self._references

    def put(self, reference: SecretReference, value: str) -> bool:
        raise AssertionError("the doctor only reads")

    def remove(self, reference: SecretReference) -> None:
        raise AssertionError("the doctor only reads")


def test_missing_entries_and_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2")
    secrets = {
        "A": "ssm:/a",
        "B": "ssm:/b",
        "C": f"file:{tmp_path}/token",
        "D": f"file:{tmp_path}/none",
        "E": f"file:{tmp_path}",
        "F": "vault:x",
    }
    found = list(secret_problems(secrets, Known("ssm:/a")))
    assert found[:3] == [
        "secret B (ssm:/b) does not exist here; `orchgpu secret put ssm:/b` stores it",
        f"secret D (file:{tmp_path}/none) does not exist, or is not a file",
        f"secret E (file:{tmp_path}) is a folder",
    ]
    assert found[3].startswith("secret F: not a reference")


def test_what_may_not_be_looked_at_is_not_a_problem() -> None:
    assert list(secret_problems({"A": "ssm:/a"}, Known(denied=True))) == []
    assert list(secret_problems({"A": "ssm:/a"}, None)) == []
