"""`via:`: what stands between an input and its queue, and where it may be written."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.budget import Budget
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.groups import deployed
from fdl.plan.plan import Action, Observed, plan
from fdl.plan.resources import (
    EVENT_BRIDGE,
    EventRule,
    Ledger,
    Notification,
    QueueResource,
    Resource,
    Topic,
    key_of,
)
from tests.unit.fdl.definitions import AWS, CODE, LOCAL, errors, only, resources

FILE = """\
functions:
  aws:
  - lambda: {name: f, init_script: s, input: [{path: box/in, via: WAY}], output: [{path: box/out}]}
"""
RULE, SNS = FILE.replace("WAY", "eventbridge"), FILE.replace("WAY", "sns")


def queue_policy(found: list[Any]) -> Any:
    (queue,) = [one for one in found if isinstance(one, QueueResource) and one.name == "f-jobs"]
    return [
        (statement["Principal"]["Service"], statement["Condition"]["ArnEquals"]["aws:SourceArn"])
        for statement in queue.policy["Statement"]
    ]


#: It stays admitted: while the way changes, S3 checks rules that still name the queue.
OF_S3 = ("s3.amazonaws.com", AWS.bucket_arn("box"))


def rules_of(found: list[Any]) -> list[Notification]:
    return [one for one in found if isinstance(one, Notification) and one.bucket == "box"]


def test_a_rule_of_eventbridge_feeds_the_queue() -> None:
    found = resources(RULE)
    rule = only(EventRule, found)
    assert (rule.name, rule.queue) == ("f-jobs", "f-jobs")
    assert rule.pattern == {
        "source": ["aws.s3"],
        "detail-type": ["Object Created"],
        "detail": {"bucket": {"name": ["box"]}, "object": {"key": [{"prefix": "in/"}]}},
    }
    assert rules_of(found) == [
        Notification(bucket="box", id=EVENT_BRIDGE, target_arn="", events=())
    ]
    assert queue_policy(found) == [("events.amazonaws.com", AWS.rule_arn("f-jobs")), OF_S3]


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("{path: box, suffix: [.png, .jpg]}", [{"suffix": ".png"}, {"suffix": ".jpg"}]),
        ("{path: 'box/a*b', suffix: .png}", [{"wildcard": r"a\*b/*.png"}]),
        ("{path: box}", None),
    ],
)
def test_keys_of_a_pattern(path: str, keys: object) -> None:
    written = f"{path[:-1]}, via: eventbridge}}"
    pattern = only(EventRule, resources(RULE.replace("{path: box/in, via: eventbridge}", written)))
    assert pattern.pattern["detail"].get("object", {}).get("key") == keys


def test_a_topic_feeds_the_queue() -> None:
    found = resources(SNS)
    topic = only(Topic, found)
    assert (topic.name, topic.queue) == ("f-jobs", "f-jobs")
    (statement,) = topic.policy["Statement"]
    assert (statement["Action"], statement["Resource"]) == ("sns:Publish", AWS.topic_arn("f-jobs"))
    assert statement["Condition"] == {
        "ArnEquals": {"aws:SourceArn": AWS.bucket_arn("box")},
        "StringEquals": {"aws:SourceAccount": AWS.account},
    }
    (rule,) = rules_of(found)
    assert (rule.target_arn, rule.prefix) == (AWS.topic_arn("f-jobs"), "in/")
    assert queue_policy(found) == [("sns.amazonaws.com", AWS.topic_arn("f-jobs")), OF_S3]
    queue = next(one for one in found if isinstance(one, QueueResource) and one.name == "f-jobs")
    assert len({statement["Sid"] for statement in queue.policy["Statement"]}) == 2


def test_elsewhere_s3_itself_sends_the_events_and_the_plan_shows_it() -> None:
    plain = FILE.replace(", via: WAY", "")
    for text, service in ((RULE, "EventBridge"), (SNS, "SNS")):
        (function,) = deployed(parse(text, "f"))
        made = desired(function, LOCAL, CODE, Budget())
        assert list(made.resources) == resources(plain, LOCAL)
        assert any(service in notice for notice in made.notices)


def test_two_functions_take_the_same_objects_and_share_the_setting_of_the_bucket() -> None:
    second = RULE.partition("aws:\n")[2].replace("name: f", "name: g")
    both = RULE + second
    for text, where in (
        (both, None),
        (both, AWS),
        (RULE + second.replace(", via: eventbridge", ""), AWS),
    ):
        assert not any("S3 notifies" in error for error in errors(text, where))
    for text, place in (
        (both, LOCAL),  # rules of S3 there
        (SNS + second.replace("eventbridge", "sns"), AWS),
        (SNS + second.replace(", via: eventbridge", ""), AWS),
    ):
        assert any("S3 notifies only one function" in error for error in errors(text, place))
    wanted = [desired(one, AWS, CODE, Budget()) for one in deployed(parse(both, "f"))]
    steps = plan(wanted, Observed(), AWS).steps
    shared = f"notification/box/{EVENT_BRIDGE}"
    assert [step.key for step in steps].count(shared) == 1
    order = [step.key for step in steps]
    assert order.index("queue/f-jobs") < order.index("event-rule/f-jobs") < order.index(shared)


def test_another_way_replaces_the_first() -> None:
    (function,) = deployed(parse(RULE, "f"))
    before: list[Resource] = resources(SNS)
    there = {key_of(one): one for one in before}
    ledger = Ledger(name="f", bucket=AWS.state_bucket, created=tuple(there))
    observed = Observed(resources=there, rules=tuple(rules_of(before)), ledgers={"f": ledger})
    steps = plan([desired(function, AWS, CODE, Budget())], observed, AWS).steps
    found = {step.key: step.action for step in steps}
    assert found["topic/f-jobs"] is Action.DELETE
    assert found["notification/box/orchgpu-f-jobs"] is Action.DELETE
    assert found["event-rule/f-jobs"] is Action.CREATE
    assert found[f"notification/box/{EVENT_BRIDGE}"] is Action.CREATE


OWNED = FILE.replace("via: WAY", "via: eventbridge, owner: '999999999999'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RULE.replace("box/out", "box/out, via: sns"), "output[0].via: users upload nothing here"),
        (OWNED, "input[0].via: S3 sends the events of another account's bucket"),
        (RULE.replace("name: f", f"name: {'f' * 60}"), "EventBridge takes 64 characters"),
    ],
)
def test_ways_that_cannot_be(text: str, message: str) -> None:
    assert any(message in error for error in errors(text, AWS)), errors(text, AWS)


def test_a_workflow_has_events_of_s3_alone() -> None:
    steps = "workflows: {w: {steps: [f]}}\n"
    assert any("start its runs" in error for error in errors(RULE + steps))
    with pytest.raises(Exception, match="not one of s3, eventbridge, sns"):
        parse(FILE, "f")
