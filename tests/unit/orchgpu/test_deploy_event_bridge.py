"""The setting by which a bucket's events go to EventBridge, beside the bucket's other rules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fdl.plan.resources import EVENT_BRIDGE, Notification
from orchgpu.adapters.aws.deploy.storage import Notifications


class Store:
    """S3's two calls about notifications, as its API reference has them; moto forgets the flag."""

    def __init__(self) -> None:
        self.configuration: dict[str, Any] = {}
        self.writes = 0

    def get_bucket_notification_configuration(self, **_: Any) -> dict[str, Any]:
        return {**self.configuration, "ResponseMetadata": {}}

    def put_bucket_notification_configuration(self, **asked: Any) -> None:
        self.configuration = asked["NotificationConfiguration"]
        self.writes += 1


@contextlib.contextmanager
def unlocked(_: str) -> Iterator[None]:
    yield


def test_it_comes_and_goes_and_leaves_other_rules() -> None:
    store: Any = Store()
    notifications = Notifications(store, unlocked)
    flag = Notification(bucket="box", id=EVENT_BRIDGE, target_arn="", events=())
    arn = "arn:aws:sqs:eu-west-1:123456789012:q"
    rule = Notification(bucket="box", id="mine", target_arn=arn, prefix="in/")
    for one in (flag, rule, flag):
        notifications.put(one)
    assert store.configuration["EventBridgeConfiguration"] == {}
    assert set(notifications.observe("box")) == {flag, rule}
    notifications.delete(flag)
    writes = store.writes
    notifications.delete(flag)
    assert store.writes == writes, "nothing is left to change"
    assert notifications.observe("box") == (rule,)


def test_a_foreign_rule_of_that_name_stays() -> None:
    store: Any = Store()
    notifications = Notifications(store, unlocked)
    flag = Notification(bucket="box", id=EVENT_BRIDGE, target_arn="", events=())
    foreign = {"Id": EVENT_BRIDGE, "QueueArn": "arn:aws:sqs:eu-west-1:1:q", "Events": ["s3:*"]}
    store.configuration = {"QueueConfigurations": [foreign]}
    notifications.put(flag)
    notifications.put(flag)
    assert store.configuration == {
        "QueueConfigurations": [foreign],
        "EventBridgeConfiguration": {},
    }
    notifications.delete(flag)
    assert store.configuration == {"QueueConfigurations": [foreign]}
