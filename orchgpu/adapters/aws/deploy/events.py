"""Topics of SNS and rules of EventBridge between a bucket and a queue, by boto3."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import DeployTarget, EventRule, Topic
from orchgpu.adapters.aws.api import Client, answer_or_none

#: The one target of a rule that is made here.
_TARGET = "jobs"
#: Fields of a target that gets something else than the event.
_TRANSFORMED = {"Input", "InputPath", "InputTransformer"}


class Topics:
    """Topics of one account and region."""

    def __init__(self, sns: Callable[[], Client], place: DeployTarget) -> None:
        self._client = sns  #: made when it is needed
        self._place = place

    def observe(self, name: str) -> Topic | None:
        """The topic; without its queue until that is subscribed."""
        arn, client = self._place.topic_arn(name), self._client()
        answer = answer_or_none(client.get_topic_attributes, TopicArn=arn)
        if answer is None:
            return None
        subscribed = self._subscribed(client, arn)
        return Topic(
            name=name,
            queue=name if self._place.queue_arn(name) in subscribed else "",
            policy=json.loads(answer["Attributes"].get("Policy") or "{}"),
        )

    def put(self, topic: Topic) -> None:
        client, policy = self._client(), json.dumps(topic.policy)
        arn = client.create_topic(Name=topic.name)["TopicArn"]
        client.set_topic_attributes(TopicArn=arn, AttributeName="Policy", AttributeValue=policy)
        queue = self._place.queue_arn(topic.queue)
        client.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue, ReturnSubscriptionArn=True)

    def delete(self, name: str) -> None:
        """Delete it with its subscriptions."""
        answer_or_none(self._client().delete_topic, TopicArn=self._place.topic_arn(name))

    @staticmethod
    def _subscribed(client: Client, arn: str) -> list[str]:
        pages = client.pages("list_subscriptions_by_topic", TopicArn=arn)
        return [str(one["Endpoint"]) for page in pages for one in page["Subscriptions"]]


class EventRules:
    """Rules of the default bus of one account and region."""

    def __init__(self, events: Callable[[], Client], place: DeployTarget) -> None:
        self._client = events  #: made when it is needed
        self._place = place

    def observe(self, name: str) -> EventRule | None:
        """The rule; without its queue until that gets the events, as they come."""
        client = self._client()
        answer = answer_or_none(client.describe_rule, Name=name)
        if answer is None:
            return None
        targets = client.list_targets_by_rule(Rule=name)["Targets"]
        target = {"Id": _TARGET, "Arn": self._place.queue_arn(name)}
        feeds = answer.get("State") == "ENABLED" and any(
            target.items() <= one.items() and _TRANSFORMED.isdisjoint(one) for one in targets
        )
        pattern: dict[str, Any] = json.loads(answer.get("EventPattern") or "{}")
        return EventRule(name=name, queue=name if feeds else "", pattern=pattern)

    def put(self, rule: EventRule) -> None:
        client = self._client()
        client.put_rule(Name=rule.name, EventPattern=json.dumps(rule.pattern), State="ENABLED")
        target = {"Id": _TARGET, "Arn": self._place.queue_arn(rule.queue)}
        for failed in client.put_targets(Rule=rule.name, Targets=[target])["FailedEntries"]:
            text = f"EventBridge refused the queue of rule {rule.name}: {failed['ErrorMessage']}"
            raise AppError(ErrorCode.UNAVAILABLE, text)

    def delete(self, name: str) -> None:
        """EventBridge deletes no rule that has a target."""
        client = self._client()
        answer = answer_or_none(client.list_targets_by_rule, Rule=name)
        if answer is not None and answer["Targets"]:
            ids = [one["Id"] for one in answer["Targets"]]
            answer_or_none(client.remove_targets, Rule=name, Ids=ids)
        answer_or_none(client.delete_rule, Name=name)
