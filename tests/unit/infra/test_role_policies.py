"""Policies of roles: those of `infra/README.md`, for the resources of a definition."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from corekit.values import replace
from fdl.parse import parse
from fdl.plan.groups import deployed
from fdl.plan.resources import DeployTarget
from fdl.plan.schedules import schedule_role
from orchgpu.permissions.model import Scope, document, trust
from orchgpu.permissions.roles import role_kind, role_names
from tests.commandline import done
from tests.iam_policies import Request, allowed

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
    schedule: "0 3 * * 1"
    gpu: {memory: 512}
    execution: host
    host: {image: "s3://search-images/search.tar#sha256:%s"}
    job: {input: {path: search-in/queries}, checkpoint: 10min}
""" % (64 * "0")
ACCOUNT = ("--account", PLACE.account, "--region", PLACE.region)


def scope(text: str = FDL) -> Scope:
    return Scope(place=PLACE, functions=deployed(parse(text.encode(), "fdl.yaml")))


def policy_of(role: str, given: Scope) -> dict[str, Any]:
    return document(role_kind(role).statements(given))


def actions_of(policy: dict[str, Any]) -> set[str]:
    allowed = [one for one in policy["Statement"] if one["Effect"] == "Allow"]
    return {action for one in allowed for action in one["Action"]}


def allows(policy: dict[str, Any], action: str, resource: str, **context: str) -> bool:
    named = {f"iam:{key}": value for key, value in context.items()}
    return allowed(Request(action, resource, named), [policy])


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


@pytest.mark.parametrize(
    "role", ["boundary", "deployer", "orchestrator", "function", "host", "user", "doctor"]
)
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


LAB = Scope(place=PLACE, bucket_prefix="lab-", function_prefix="lab-")
IAM = f"arn:aws:iam::{PLACE.account}"
LIMIT = f"{IAM}:policy/orchgpu-functions"
MADE = f"{IAM}:role/orchgpu/functions/lab-a-eu-west-1"
WHERE = f"{PLACE.region}:{PLACE.account}"
STATE = f"arn:aws:s3:::{PLACE.state_bucket}"


def test_with_prefixes_it_covers_later_functions() -> None:
    deployer = policy_of("deployer", LAB)
    assert allows(deployer, "s3:CreateBucket", "arn:aws:s3:::lab-any")
    assert allows(deployer, "iam:CreateRole", MADE, PermissionsBoundary=LIMIT)
    assert allows(deployer, "iam:PutRolePolicy", MADE, PermissionsBoundary=LIMIT)
    assert allows(deployer, "iam:PassRole", MADE, PassedToService="lambda.amazonaws.com")
    assert allows(deployer, "logs:TagResource", f"arn:aws:logs:{WHERE}:log-group:/aws/lambda/lab-a")


TO_LAMBDA = {"PassedToService": "lambda.amazonaws.com"}
#: What would make a deployer an administrator, or touch what is not its own.
FORBIDDEN = [
    ("iam:CreateRole", MADE, {}),
    ("iam:CreateRole", MADE, {"PermissionsBoundary": f"{IAM}:policy/other"}),
    ("iam:CreateRole", f"{IAM}:role/admin", {"PermissionsBoundary": LIMIT}),
    ("iam:CreateRole", f"{IAM}:role/orchgpu-deployer", {"PermissionsBoundary": LIMIT}),
    ("iam:PutRolePolicy", MADE, {}),
    ("iam:PutRolePolicy", f"{IAM}:role/orchgpu-deployer", {}),
    ("iam:PutRolePolicy", f"{IAM}:role/orchgpu-deployer", {"PermissionsBoundary": LIMIT}),
    ("iam:PutRolePolicy", f"{IAM}:role/orchgpu-orchestrator", {"PermissionsBoundary": LIMIT}),
    ("iam:DeleteRole", f"{IAM}:role/orchgpu-orchestrator", {}),
    ("iam:DeleteRolePermissionsBoundary", MADE, {"PermissionsBoundary": LIMIT}),
    ("iam:PutRolePermissionsBoundary", MADE, {"PermissionsBoundary": f"{IAM}:policy/other"}),
    ("iam:AttachRolePolicy", MADE, {"PermissionsBoundary": LIMIT}),
    ("iam:UpdateAssumeRolePolicy", f"{IAM}:role/orchgpu-orchestrator", {}),
    ("iam:CreatePolicyVersion", LIMIT, {}),
    ("iam:SetDefaultPolicyVersion", LIMIT, {}),
    ("iam:DeletePolicy", LIMIT, {}),
    ("iam:CreateUser", f"{IAM}:user/me", {}),
    ("iam:CreateAccessKey", f"{IAM}:user/admin", {}),
    ("iam:PassRole", f"{IAM}:role/admin", TO_LAMBDA),
    ("iam:PassRole", f"{IAM}:role/orchgpu-orchestrator", TO_LAMBDA),
    ("iam:PassRole", MADE, {"PassedToService": "ec2.amazonaws.com"}),
    ("sts:AssumeRole", f"{IAM}:role/admin", {}),
    ("lambda:UpdateFunctionCode", f"arn:aws:lambda:{WHERE}:function:payroll", {}),
    ("lambda:InvokeFunction", f"arn:aws:lambda:{WHERE}:function:payroll", {}),
    ("lambda:AddPermission", f"arn:aws:lambda:{WHERE}:function:payroll", {}),
    ("s3:PutLifecycleConfiguration", "arn:aws:s3:::payroll", {}),
    ("s3:PutBucketNotification", "arn:aws:s3:::payroll", {}),
    ("s3:DeleteBucket", "arn:aws:s3:::payroll", {}),
    ("s3:PutBucketPolicy", "arn:aws:s3:::lab-in", {}),
    ("s3:GetObject", "arn:aws:s3:::payroll/x", {}),
    ("s3:GetObject", "arn:aws:s3:::lab-in/x", {}),
    ("s3:PutObject", f"{STATE}/infra/orchgpu/ca.pem", {}),
    ("s3:DeleteObject", f"{STATE}/infra/orchgpu/0123.tar", {}),
    ("sqs:ReceiveMessage", f"arn:aws:sqs:{WHERE}:payroll-jobs", {}),
    ("sqs:DeleteQueue", f"arn:aws:sqs:{WHERE}:payroll-jobs", {}),
    ("logs:PutRetentionPolicy", f"arn:aws:logs:{WHERE}:log-group:/aws/lambda/payroll:*", {}),
    ("logs:DeleteLogGroup", f"arn:aws:logs:{WHERE}:log-group:/aws/lambda/lab-a:*", {}),
    ("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{WHERE}:secret:lab-a-AbCdEf", {}),
    ("kms:Decrypt", f"arn:aws:kms:{WHERE}:key/1", {}),
]


@pytest.mark.parametrize(("action", "resource", "context"), FORBIDDEN)
def test_a_deployer_cannot_rise_above_its_functions(
    action: str, resource: str, context: dict[str, str]
) -> None:
    definition = scope(FDL.replace("search", "lab-a"))
    for given in (LAB, definition):
        assert not allows(policy_of("deployer", given), action, resource, **context)


@pytest.mark.parametrize("role", ["deployer", "orchestrator", "user", "boundary"])
def test_no_role_gets_every_bucket_queue_or_function(role: str) -> None:
    for given in (LAB, scope()):
        policy = policy_of(role, given)
        for action, resource in (
            ("s3:GetObject", "arn:aws:s3:::payroll/x"),
            ("s3:PutObject", "arn:aws:s3:::payroll/x"),
            ("s3:ListBucket", "arn:aws:s3:::payroll"),
            ("sqs:ReceiveMessage", f"arn:aws:sqs:{WHERE}:payroll-jobs"),
            ("sqs:SendMessage", f"arn:aws:sqs:{WHERE}:payroll-jobs"),
            ("lambda:InvokeFunction", f"arn:aws:lambda:{WHERE}:function:payroll"),
            ("logs:FilterLogEvents", f"arn:aws:logs:{WHERE}:log-group:/aws/lambda/payroll:*"),
        ):
            assert not allows(policy, action, resource), (role, action)


def test_a_role_within_the_boundary_does_its_work_and_no_more() -> None:
    """The escalation of the first version: a made role with `*:*`, and code that runs as it."""
    anything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    risen = {"Version": "2012-10-17", "Statement": [anything]}
    for given in (LAB, scope(FULL)):
        boundary = policy_of("boundary", given)
        assert len(json.dumps(boundary, separators=(",", ":"))) <= 6144
        refused = [
            ("iam:CreateUser", f"{IAM}:user/me"),
            ("s3:PutObject", f"{STATE}/functions/f.json"),
            ("s3:GetObject", f"{STATE}/functions/f.json"),
            ("s3:GetObject", f"{STATE}/infra/orchgpu/ca.pem"),
            ("s3:PutObject", f"{STATE}/packages/p.zip"),
            ("s3:GetObject", "arn:aws:s3:::payroll/x"),
            ("s3:PutBucketPolicy", "arn:aws:s3:::lab-in"),
            ("lambda:UpdateFunctionCode", f"arn:aws:lambda:{WHERE}:function:payroll"),
            ("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:{WHERE}:secret:x-AbCdEf"),
            ("sts:AssumeRole", f"{IAM}:role/admin"),
        ]
        for action, resource in refused:
            assert not allowed(Request(action, resource), [risen], boundary), action
    code = {"lambda:SourceFunctionArn": f"arn:aws:lambda:{WHERE}:function:lab-a"}
    interface = Request("ec2:CreateNetworkInterface", "*", code)
    assert not allowed(interface, [risen], policy_of("boundary", LAB))


@pytest.mark.parametrize("text", [FDL, FULL])
def test_the_boundary_allows_what_a_function_role_does(text: str) -> None:
    """Every statement of the role, with its wildcards as an example."""
    text = text.replace("search", "lab-a")
    role = policy_of("function", scope(text))
    key = {"kms:ViaService": "s3.eu-west-1.amazonaws.com"}
    secrets = replace(LAB, secret_prefix="lab-")
    for boundary in (policy_of("boundary", secrets), policy_of("boundary", scope(text))):
        lacking = [
            str(request)
            for one in role["Statement"]
            if one["Effect"] == "Allow"
            for action in one["Action"]
            for resource in one["Resource"]
            for request in [Request(action, resource.replace("?", "x").replace("*", "x"), key)]
            if not allowed(request, [role], boundary)
        ]
        assert lacking == []


def test_a_role_is_passed_to_lambda_only() -> None:
    [passes] = [
        one for one in policy_of("deployer", scope())["Statement"] if one["Sid"] == "PassRole"
    ]
    assert passes["Condition"]["StringEquals"] == {"iam:PassedToService": "lambda.amazonaws.com"}


SCHEDULED = """\
functions:
  aws:
  - lambda: {name: f, init_script: s, input: [{path: box/in}], output: [{path: box/out}]}
    iam: {role: "arn:aws:iam::123456789012:role/f"}
    schedule: "0 3 * * 1"
"""


def test_a_deployer_of_schedules_makes_them_and_their_role() -> None:
    wanted = scope(SCHEDULED)
    functions = wanted.functions
    role = PLACE.role_arn(schedule_role(functions[0], PLACE).full_name)
    schedule = PLACE.schedule_arn("f-schedule")
    to_scheduler = {"PassedToService": "scheduler.amazonaws.com"}
    for deployer in (policy_of("deployer", wanted), policy_of("deployer", Scope(place=PLACE))):
        assert allows(deployer, "scheduler:CreateSchedule", schedule)
    deployer = policy_of("deployer", wanted)
    assert allows(deployer, "iam:CreateRole", role, PermissionsBoundary=LIMIT)
    assert allows(deployer, "iam:PassRole", role, **to_scheduler)
    assert not allows(deployer, "scheduler:CreateSchedule", PLACE.schedule_arn("g-schedule"))
    boundary = policy_of("boundary", wanted)
    put = schedule_role(functions[0], PLACE).policy["Statement"][0]["Resource"][0]
    assert allows(boundary, "s3:PutObject", put.replace("*", "x"))
    assert not allows(policy_of("deployer", scope()), "scheduler:CreateSchedule", schedule)


@pytest.mark.parametrize(
    ("via", "action", "arn"),
    [
        ("sns", "sns:CreateTopic", PLACE.topic_arn("f-jobs")),
        ("eventbridge", "events:PutRule", PLACE.rule_arn("f-jobs")),
    ],
)
def test_a_deployer_makes_the_ways_of_uploads(via: str, action: str, arn: str) -> None:
    wanted = scope(SCHEDULED.replace("{path: box/in}", f"{{path: box/in, via: {via}}}"))
    for deployer in (policy_of("deployer", wanted), policy_of("deployer", Scope(place=PLACE))):
        assert allows(deployer, action, arn)
    assert not allows(policy_of("deployer", wanted), action, arn.replace("f-jobs", "g-jobs"))
    assert not allows(policy_of("deployer", scope()), action, arn)


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
    everything = done(["iam", "deployer", *ACCOUNT])
    assert everything.exit_code == 2
    assert "every bucket and function of the account" in everything.stderr
    stems = ["--bucket-prefix", "*", "--function-prefix", "lab-"]
    assert "letters, digits" in done(["iam", "deployer", *stems, *ACCOUNT]).stderr
    stems[1] = "lab-"
    assert done(["iam", "user", *stems, *ACCOUNT]).exit_code == 0
    china = done(["iam", "host", "--account", "1", "--region", "cn-north-1"])
    assert china.exit_code == 0


@pytest.mark.parametrize(
    ("definition", "resources"),
    [("fold:3", ["fold:3"]), ("fold", ["fold", "fold:*"])],  # a name is of its newest revision
)
def test_a_definition_of_batch_may_be_submitted_as_it_is_named(
    definition: str, resources: list[str]
) -> None:
    batch = (
        f"    execution: host\n    host: {{batch: {{queue: gpus, definition: '{definition}'}}}}\n"
    )
    prefix = "arn:aws:batch:eu-west-1:123456789012:job-"
    assert scope(FDL.replace("    gpu: {memory: 512}\n", batch)).batch() == (
        f"{prefix}queue/gpus",
        *(f"{prefix}definition/{one}" for one in resources),
    )
