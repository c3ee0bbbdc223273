"""Checks of the targets of `notify:`, of a definition and of what is deployed."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import ErrorCode
from corekit.values import replace
from gpu_scheduler.model import Request
from orchgpu.core.function import Function as Served
from orchgpu.core.notify import Target
from orchgpu.core.runs.workflow import Workflow
from orchgpu.inspection.model import Inspected, Verdict
from orchgpu.inspection.subject import deployed
from orchgpu.permissions.model import Scope
from orchgpu.permissions.roles import role_kind
from tests.aws_account import FDL, PLACE, Account, function, refused, subject
from tests.unit.orchgpu.runs.run_world import step, workflow

GOOD, WARNING, UNKNOWN, WRONG = Verdict.GOOD, Verdict.WARNING, Verdict.UNKNOWN, Verdict.WRONG
TOPIC = f"arn:aws:sns:eu-west-1:{PLACE.account}:ends"
HOOK = "https://hooks.example"
NAMED = f"""\
    notify:
    - {{queue: done}}
    - {{topic: "{TOPIC}"}}
    - {{webhook: "{HOOK}/T0/token", secret: "ssm:/a"}}
"""


def account(**changes: Any) -> Account:
    """An account in which all targets exist."""
    url = {"QueueUrl": f"https://sqs.eu-west-1.amazonaws.com/{PLACE.account}/done"}
    parameter = {"Name": "/a", "Type": "SecureString", "KeyId": "alias/aws/ssm"}
    answers = {
        "sqs.GetQueueUrl": url,
        "sns.GetTopicAttributes": {"Attributes": {"TopicArn": TOPIC}},
        "ssm.DescribeParameters": {"Parameters": [parameter]},
    }
    return Account({**answers, **changes})


def with_targets(text: str = NAMED) -> dict[str, Any]:
    return {"functions": (Inspected(function=function(FDL + text), deployed=False),)}


def only(of: Account, text: str = NAMED) -> tuple[Verdict, str, str]:
    """The one finding that is not good."""
    found = of.findings("notices", subject(**with_targets(text)))
    [finding] = [one for one in found if one.verdict is not GOOD]
    return finding.verdict, finding.where, f"{finding.message} → {finding.remedy}"


def test_targets_that_exist_are_good_and_the_doctor_may_make_every_call() -> None:
    asked = account()
    found = asked.findings("notices", subject(**with_targets()))
    assert [one.verdict for one in found] == [GOOD] * 4
    assert not any("token" in one.where for one in found), "the path may be a secret"
    [statement] = role_kind("doctor").statements(Scope(place=PLACE))
    assert {call.action for call in asked.calls} <= set(statement.actions)
    assert len(asked.calls) == 3


GONE = refused("gone", ErrorCode.NOT_FOUND)
ABSENT: list[tuple[dict[str, Any], str, str]] = [
    (
        {"sqs.GetQueueUrl": GONE},
        "notify, queue done",
        "does not exist, and deploy does not make it → aws sqs create-queue --queue-name done",
    ),
    (
        {"sns.GetTopicAttributes": GONE},
        f"notify, {TOPIC}",
        "does not exist, and deploy does not make it → aws sns create-topic --name ends",
    ),
    (
        {"ssm.DescribeParameters": {"Parameters": []}},
        f"notify, {HOOK}, ssm:/a",
        "does not exist in this account and region → orchgpu secret put ssm:/a",
    ),
]


@pytest.mark.parametrize(("answers", "where", "text"), ABSENT)
def test_a_target_that_is_missing_is_found(answers: dict[str, Any], where: str, text: str) -> None:
    assert only(account(**answers)) == (WRONG, where, text)


@pytest.mark.parametrize("call", ["sqs.GetQueueUrl", "sns.GetTopicAttributes"])
def test_a_forbidden_call_is_unknown_and_named(call: str) -> None:
    verdict, _, text = only(account(**{call: refused("AccessDenied")}))
    assert (verdict, call.replace(".", ":") in text) == (UNKNOWN, True)


def test_a_webhook_without_encryption_and_a_file_on_another_machine() -> None:
    plain = '    notify: [{webhook: "http://hooks.example/x"}]\n'
    assert only(account(), plain)[0] is WARNING
    file = f'    notify: [{{webhook: "{HOOK}/x", secret: "file:/etc/hook"}}]\n'
    assert only(account(), file)[:2] == (UNKNOWN, f"notify, {HOOK}, file:/etc/hook")


def test_the_targets_of_a_deployed_function_and_of_its_workflow_are_looked_at() -> None:
    served = Served(
        name="search",
        queue_url="http://q/search-jobs",
        dead_letter_url="http://q/search-dlq",
        completion_url="http://q/search-done",
        input_bucket="in",
        intermediate_bucket="mid",
        request=Request(),
        timeout_s=30.0,
        revision="1",
        notify=(Target(queue="done"),),
    )
    runs: Workflow = replace(
        workflow(step("search")),
        notify=(Target(webhook=HOOK, secret="ssm:/a"), Target(topic=TOPIC)),
    )
    settings = {
        "FunctionName": "search",
        "MemorySize": 512,
        "Timeout": 30,
        "Role": f"arn:aws:iam::{PLACE.account}:role/search",
    }
    of = account(**{"lambda.GetFunctionConfiguration": settings})
    found = deployed(served, of, runs)
    looked = of.findings("notices", subject(functions=(found,)))
    assert [(one.verdict, one.where) for one in looked] == [
        (GOOD, "notify, queue done"),
        (GOOD, f"notify, {HOOK}"),
        (GOOD, f"notify, {HOOK}, ssm:/a"),
        (GOOD, f"notify, {TOPIC}"),
    ]
