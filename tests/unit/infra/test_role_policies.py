"""Policies of roles: those of `infra/README.md`, for the resources of a definition."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fdl.parse import parse
from fdl.plan.groups import deployed
from fdl.plan.resources import DeployTarget
from orchgpu.permissions.model import Scope, document, trust
from orchgpu.permissions.registry import role_kind, role_names
from tests.commandline import done

ROOT = Path(__file__).resolve().parents[3]
PLACE = DeployTarget(account="123456789012", region="eu-west-1")
#: Role → its heading in the README.
HEADINGS = {
    "deployer": "Deployment",
    "orchestrator": "Orchestrator",
    "function": "Function",
    "user": "Commands",
    "doctor": "Doctor",
}
FDL = """\
functions:
  aws:
  - lambda:
      name: search
      init_script: search.py
      output: [{path: search-out/hits}]
      vpc: {SubnetIds: [subnet-1], SecurityGroupIds: [sg-1]}
    iam: {create: true}
    gpu: {memory: 512}
    job: {input: {path: search-in/queries}}
"""
#: A function that uses everything for which a role has a statement.
FULL = """\
functions:
  aws:
  - lambda:
      name: search
      init_script: search.py
      output:
      - {path: search-out/hits, kms_key: arn:aws:kms:eu-west-1:123456789012:key/2}
      vpc: {SubnetIds: [subnet-1], SecurityGroupIds: [sg-1]}
      tracing: Active
      kms_key: arn:aws:kms:eu-west-1:123456789012:key/1
      file_system:
      - Arn: arn:aws:elasticfilesystem:eu-west-1:123456789012:access-point/fsap-0123456789abcdef0
        LocalMountPath: /mnt/data
    iam: {create: true}
    secrets: {A: ssm:/search/a, B: secretsmanager:search/b}
    gpu: {memory: 512}
    job: {input: {path: search-in/queries}}
"""
ACCOUNT = ("--account", PLACE.account, "--region", PLACE.region)


def scope(text: str = FDL) -> Scope:
    return Scope(place=PLACE, functions=deployed(parse(text.encode(), "fdl.yaml")))


def policy_of(role: str, given: Scope) -> dict[str, Any]:
    return document(role_kind(role).statements(given))


def actions_of(policy: dict[str, Any]) -> set[str]:
    allowed = [one for one in policy["Statement"] if one["Effect"] == "Allow"]
    return {action for one in allowed for action in one["Action"]}


def allows(policy: dict[str, Any], action: str, resource: str) -> bool:
    return any(
        one["Effect"] == "Allow"
        and action in one["Action"]
        and any(fnmatch.fnmatchcase(resource, r) for r in one["Resource"])
        for one in policy["Statement"]
    )


@pytest.mark.parametrize("role", HEADINGS)
def test_a_policy_has_the_actions_of_the_readme(role: str) -> None:
    readme = (ROOT / "infra/README.md").read_text()
    [section] = [
        part
        for part in re.split(r"^### ", readme, flags=re.MULTILINE)
        if part.startswith(HEADINGS[role])
    ]
    rows = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    listed = set(re.findall(r"`([a-z0-9]+:[A-Z]\w+)`", rows))
    given = scope(FULL) if role == "function" else Scope(place=PLACE)
    assert actions_of(policy_of(role, given)) == listed


@pytest.mark.parametrize("role", ["deployer", "orchestrator", "function", "host", "user", "doctor"])
def test_every_statement_is_complete_and_no_sid_comes_twice(role: str) -> None:
    for given in (scope(), Scope(place=PLACE)) if role != "function" else (scope(),):
        statements = policy_of(role, given)["Statement"]
        assert statements
        assert all(one["Action"] and one["Resource"] for one in statements)
        names = [one["Sid"] for one in statements]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch("[A-Za-z0-9]+", name) for name in names)


def test_with_a_definition_a_policy_names_its_resources() -> None:
    deployer = policy_of("deployer", scope())
    assert allows(deployer, "s3:CreateBucket", "arn:aws:s3:::search-in")
    assert allows(deployer, "s3:PutObject", f"arn:aws:s3:::{PLACE.state_bucket}/functions/x.json")
    assert not allows(deployer, "s3:CreateBucket", "arn:aws:s3:::other")
    assert not allows(deployer, "s3:GetObject", "arn:aws:s3:::search-in/queries/x")
    orchestrator = policy_of("orchestrator", scope())
    queue = "arn:aws:sqs:eu-west-1:123456789012:search-jobs"
    assert allows(orchestrator, "sqs:ReceiveMessage", queue)
    assert not allows(orchestrator, "sqs:ReceiveMessage", queue.replace("jobs", "dlq"))
    assert not allows(orchestrator, "s3:PutObject", "arn:aws:s3:::search-in/queries/x")


def test_without_a_definition_it_covers_later_functions() -> None:
    deployer = policy_of("deployer", Scope(place=PLACE))
    assert allows(deployer, "s3:CreateBucket", "arn:aws:s3:::any")
    assert allows(deployer, "iam:CreateRole", "arn:aws:iam::123456789012:role/orchgpu-any")
    assert not allows(deployer, "iam:CreateRole", "arn:aws:iam::123456789012:role/admin")
    assert not allows(deployer, "s3:GetObject", "arn:aws:s3:::any/x")


def test_a_role_is_passed_to_lambda_only() -> None:
    [passes] = [
        one for one in policy_of("deployer", scope())["Statement"] if one["Sid"] == "PassRole"
    ]
    assert passes["Condition"]["StringEquals"] == {"iam:PassedToService": "lambda.amazonaws.com"}


def test_functions_of_one_file_share_statements() -> None:
    second = FDL.replace("search", "other").partition("aws:\n")[2]
    one, both = policy_of("function", scope()), policy_of("function", scope(FDL + second))
    # what is denied to a function's code names the function
    assert {s["Sid"] for s in both["Statement"]} - {s["Sid"] for s in one["Statement"]} == {
        "NetworkNotByCode2"
    }
    assert allows(both, "s3:PutObject", "arn:aws:s3:::other-out/hits/x")
    assert allows(both, "s3:PutObject", "arn:aws:s3:::search-out/hits/x")


def test_the_command_prints_json_that_iam_accepts(tmp_path: Path) -> None:
    file = tmp_path / "fdl.yaml"
    file.write_text(FDL)
    printed = done(["iam", "deployer", str(file), *ACCOUNT])
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout) == policy_of("deployer", scope())
    assert list(json.loads(printed.stdout)) == ["Version", "Statement"]
    trusted = done(["iam", "orchestrator", "--trust", *ACCOUNT])
    assert json.loads(trusted.stdout) == trust("ec2.amazonaws.com", PLACE)
    people = json.loads(done(["iam", "deployer", "--trust", *ACCOUNT]).stdout)
    assert people["Statement"][0]["Principal"] == {"AWS": "arn:aws:iam::123456789012:root"}


def test_the_command_lists_roles_and_refuses_what_it_cannot_print() -> None:
    listed = done(["iam"])
    assert [line.split()[0] for line in listed.stdout.splitlines()] == role_names()
    assert done(["iam", "nobody", *ACCOUNT]).exit_code == 2
    assert "give its FILE" in done(["iam", "function", *ACCOUNT]).stderr
    china = done(["iam", "host", "--account", "1", "--region", "cn-north-1"])
    assert china.exit_code == 0
