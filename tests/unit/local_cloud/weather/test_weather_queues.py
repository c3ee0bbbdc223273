"""Weather of SQS: deleted names, late attributes, repeated and unordered messages."""

from __future__ import annotations

import pytest

from local_cloud.model.errors import CloudError
from local_cloud.model.sqs.queue import Queue
from local_cloud.model.weather import Weather
from tests.unit.local_cloud.weather.weather_world import World, refusal


def test_the_name_of_a_deleted_queue_is_in_use_for_a_minute() -> None:
    world = World(Weather(queue_deleted_s=60.0, scale=0.5))
    world.queue()
    world.cloud.queues.delete(10.0, "queue")
    code, status, message = refusal(lambda: world.cloud.queues.create(39.9, "queue"))
    assert (code, status) == ("QueueDeletedRecently", 400)
    assert "60 seconds" in message
    assert world.cloud.queues.create(40.0, "queue").name == "queue"


def test_attributes_are_in_force_late() -> None:
    world = World(Weather(queue_attributes_s=(60.0, 60.0)))
    queue = world.queue()
    world.cloud.queues.set_attributes(100.0, "queue", {"VisibilityTimeout": "99"})
    world.cloud.queues.set_attributes(110.0, "queue", {"VisibilityTimeout": "98"})

    def visibility_s(now_s: float) -> float:
        return world.cloud.queues.settings_in_force(now_s, queue).visibility_s

    assert [visibility_s(at_s) for at_s in (110.0, 169.9, 170.0)] == [30, 30, 98]


def test_a_notification_needs_the_policy_of_its_queue_in_force() -> None:
    world = World(Weather(queue_attributes_s=(60.0, 60.0)))
    world.cloud.strict_policies = True
    world.bucket()
    queue = world.queue()
    policy = (
        '{"Statement": [{"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"},'
        f' "Action": "sqs:SendMessage", "Resource": "{queue.arn}"}}]}}'
    )
    world.cloud.queues.set_attributes(100.0, "queue", {"Policy": policy})
    rules = [world.rule(queue)]
    late = refusal(lambda: world.cloud.configure_notifications(159.0, "bucket", rules))
    assert late[2].startswith("Unable to validate the following destination")
    world.cloud.configure_notifications(160.0, "bucket", rules)


def test_a_received_message_may_be_received_again_before_its_visibility_ends() -> None:
    world = World(Weather(message_repeat_rate=1.0, message_repeat_s=(2.0, 2.0)))
    queue = world.queue()
    queue.send(0.0, "body")
    (first,) = queue.receive(0.0)
    assert queue.receive(1.9) == []
    (again,) = queue.receive(2.0)
    assert (again.id, again.receives) == (first.id, 2)
    assert again.handle != first.handle


def test_a_deleted_message_may_be_received_again() -> None:
    world = World(Weather(seed="2", message_repeat_rate=0.5, message_repeat_s=(2.0, 2.0)))
    queue = world.queue()
    seen = sum(_receives_until_it_is_gone(queue, number) for number in range(20))
    assert seen > 20
    assert queue.messages() == []


def _receives_until_it_is_gone(queue: Queue, number: int) -> int:
    queue.send(0.0, str(number))
    for count in range(1, 100):
        found = queue.receive(count * 100.0)
        if not found:
            return count - 1
        assert queue.delete(count * 100.0, found[0].handle)
    raise AssertionError("the message is never gone")


def test_messages_come_in_any_order_and_none_is_missing() -> None:
    world = World(Weather(unordered=True))
    queue = world.queue()
    for number in range(30):
        queue.send(0.0, str(number))
    bodies = [m.body for _ in range(3) for m in queue.receive(1.0, count_max=10)]
    assert bodies != [str(number) for number in range(30)]
    assert sorted(bodies, key=int) == [str(number) for number in range(30)]


def test_a_refused_queue_is_not_made() -> None:
    world = World(Weather(role_s=(5.0, 5.0)))
    policy = f'{{"Statement": [{{"Principal": {{"AWS": ["{world.role()}"]}}}}]}}'
    with pytest.raises(CloudError, match=r"Invalid value for the parameter Policy\."):
        world.cloud.queues.create(4.9, "queue", {"Policy": policy})
    assert world.cloud.queues.names() == []
    world.cloud.queues.create(5.0, "queue", {"Policy": policy})
