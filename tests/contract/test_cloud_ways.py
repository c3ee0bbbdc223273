"""Topics and rules of EventBridge between a bucket and a queue, as a deployment makes them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from corekit.values import replace
from fdl.plan.resources import DeployTarget, EventRule, Notification, Topic
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.deploy.events import EventRules, Topics
from orchgpu.adapters.aws.deploy.queues import SqsQueues
from orchgpu.adapters.aws.deploy.storage import Notifications

Cloud = Any


@contextlib.contextmanager
def unlocked(_: str) -> Iterator[None]:
    yield


@pytest.fixture
def place(cloud: Cloud) -> DeployTarget:
    if cloud.name == "embedded":
        pytest.skip("the embedded cloud has neither: deploys use S3's own events there")
    return DeployTarget(account=cloud.account, region="us-east-1")


def test_a_topic_comes_and_goes(cloud: Cloud, place: DeployTarget) -> None:
    client = AwsClient(cloud.client("sns"))
    topics, name = Topics(lambda: client, place), cloud.unique("topic")
    cloud.client("sqs").create_queue(QueueName=name)
    statement = {
        "Sid": "events",
        "Effect": "Allow",
        "Principal": {"Service": "s3.amazonaws.com"},
        "Action": "sns:Publish",
        "Resource": place.topic_arn(name),
    }
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    wanted = Topic(name=name, queue=name, policy=policy)
    assert topics.observe(name) is None
    for _ in range(2):
        topics.put(wanted)
        assert topics.observe(name) == wanted
    found = client.list_subscriptions_by_topic(TopicArn=place.topic_arn(name))
    assert len(found["Subscriptions"]) == 1
    topics.delete(name)
    topics.delete(name)
    assert topics.observe(name) is None


def test_a_rule_comes_and_goes(cloud: Cloud, place: DeployTarget) -> None:
    client = AwsClient(cloud.client("events"))
    rules, name = EventRules(lambda: client, place), cloud.unique("rule")
    pattern = {"source": ["aws.s3"], "detail": {"object": {"key": [{"wildcard": "a*b"}]}}}
    wanted = EventRule(name=name, queue=name, pattern=pattern)
    assert rules.observe(name) is None
    rules.put(wanted)
    changed = replace(wanted, pattern={"source": ["aws.s3"]})
    rules.put(changed)
    assert rules.observe(name) == changed
    client.remove_targets(Rule=name, Ids=["jobs"])
    assert rules.observe(name) == replace(changed, queue=""), "which the next deploy repairs"
    rules.put(changed)
    client.disable_rule(Name=name)
    assert rules.observe(name) == replace(changed, queue="")
    rules.put(changed)
    ours, elsewhere = place.queue_arn(name), replace(place, region="eu-west-1").queue_arn(name)
    for target in ({"Arn": elsewhere}, {"Arn": ours, "InputPath": "$.detail"}):
        client.put_targets(Rule=name, Targets=[{"Id": "jobs", **target}])
        assert rules.observe(name) == replace(changed, queue="")
        rules.put(changed)
        assert rules.observe(name) == changed
    client.put_targets(Rule=name, Targets=[{"Id": "another", "Arn": ours}])
    rules.delete(name)
    rules.delete(name)
    assert rules.observe(name) is None


def test_a_test_event_is_no_job_in_the_envelope_of_a_topic_either(cloud: Cloud) -> None:
    sqs, name = cloud.client("sqs"), cloud.unique("queue")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    event = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"})
    for body in (event, json.dumps({"Type": "Notification", "Message": event}), "{}"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    assert SqsQueues(AwsClient(sqs)).messages(name) == 1


def test_a_rule_of_a_bucket_publishes_to_a_topic(cloud: Cloud, place: DeployTarget) -> None:
    bucket = cloud.bucket()
    notifications = Notifications(AwsClient(cloud.client("s3")), unlocked)
    topic = cloud.client("sns").create_topic(Name=cloud.unique("topic"))["TopicArn"]
    assert topic == place.topic_arn(topic.rpartition(":")[2])
    rule = Notification(bucket=bucket, id="topic", target_arn=topic, prefix="in/")
    notifications.put(rule)
    assert notifications.observe(bucket) == (rule,)
    notifications.delete(rule)
    assert notifications.observe(bucket) == ()
