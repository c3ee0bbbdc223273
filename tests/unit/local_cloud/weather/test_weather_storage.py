"""Weather of S3: versioning, load, conflicts, busy buckets, regions, notification rules, events."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from local_cloud.model.s3.object_version import Condition
from local_cloud.model.weather import NO_WEATHER, LostAnswerError, Weather
from tests.unit.local_cloud.weather.weather_world import World, refusal


def test_versioning_that_is_new_hides_what_is_written_after_it() -> None:
    world = World(Weather(versioning_s=900.0, versioning_rate=1.0, scale=0.1))
    world.bucket()
    world.put(0.0, "before")
    world.cloud.set_versioning(1.0, "bucket", "Enabled")
    world.put(2.0, "after")
    assert world.cloud.read_object(3.0, "bucket", "before").key == "before"
    assert refusal(lambda: world.cloud.read_object(90.9, "bucket", "after"))[:2] == (
        "NoSuchKey",
        404,
    )
    assert world.cloud.read_object(91.0, "bucket", "after").key == "after"
    assert world.cloud.draws.counts == {"false 404": 1}


def test_versioning_that_is_enabled_again_hides_nothing() -> None:
    world = World(Weather(versioning_s=900.0, versioning_rate=1.0))
    world.bucket()
    world.cloud.set_versioning(0.0, "bucket", "Enabled")
    world.cloud.set_versioning(2000.0, "bucket", "Suspended")
    world.cloud.set_versioning(2001.0, "bucket", "Enabled")
    world.put(2002.0)
    assert world.cloud.read_object(2003.0, "bucket", "k").size == 4


def test_slow_down_refuses_reads_writes_and_deletes() -> None:
    world = World(Weather(slow_down_rate=1.0))
    world.bucket()
    calls: tuple[Callable[[], object], ...] = (
        lambda: world.put(0.0),
        lambda: world.cloud.read_object(0.0, "bucket", "k"),
        lambda: world.cloud.delete_object(0.0, "bucket", "k"),
    )
    for call in calls:
        assert refusal(call)[:2] == ("SlowDown", 503)
    assert world.cloud.bucket("bucket").empty


def test_a_lost_answer_is_that_of_a_write_that_was_made() -> None:
    world = World(Weather(lost_answer_rate=1.0))
    world.bucket()
    with pytest.raises(LostAnswerError) as error:
        world.put(0.0, condition=Condition(if_none_match=True))
    assert (error.value.code, error.value.status) == ("InternalError", 500)
    assert world.cloud.read_object(0.0, "bucket", "k").size == 4
    again = refusal(lambda: world.put(0.0, condition=Condition(if_none_match=True)))
    assert again[:2] == ("PreconditionFailed", 412)


def test_a_conditional_write_may_conflict_and_then_nothing_is_written() -> None:
    world = World(Weather(write_conflict_rate=1.0))
    world.bucket()
    conflict = refusal(lambda: world.put(0.0, condition=Condition(if_none_match=True)))
    assert conflict[:2] == ("ConditionalRequestConflict", 409)
    assert world.cloud.bucket("bucket").empty
    assert world.put(0.0).size == 4


def test_settings_of_a_bucket_that_are_being_changed_refuse_another_change() -> None:
    world = World(Weather(bucket_busy_s=(5.0, 5.0), bucket_busy_rate=1.0))
    world.bucket()
    busy = refusal(lambda: world.cloud.set_versioning(4.0, "bucket", "Enabled"))
    assert busy[:2] == ("OperationAborted", 409)
    world.cloud.set_versioning(5.0, "bucket", "Enabled")
    assert refusal(lambda: world.cloud.delete_bucket(6.0, "bucket"))[0] == "OperationAborted"
    world.cloud.delete_bucket(10.0, "bucket")


def test_the_name_of_a_deleted_bucket_stays_in_use_for_a_while() -> None:
    world = World(Weather(bucket_gone_s=(30.0, 30.0)))
    world.bucket()
    world.cloud.delete_bucket(0.0, "bucket")
    assert refusal(lambda: world.cloud.create_bucket(29.0, "bucket"))[0] == "OperationAborted"
    assert world.cloud.create_bucket(30.0, "bucket").name == "bucket"


@pytest.mark.parametrize(
    ("location", "code", "status", "shown"),
    [
        ("eu-west-1", "PermanentRedirect", 301, "eu-west-1"),
        ("EU", "PermanentRedirect", 301, "eu-west-1"),
        ("eu-south-2", "AuthorizationHeaderMalformed", 400, "eu-south-2"),
    ],
)
def test_a_bucket_is_served_in_its_region(
    location: str, code: str, status: int, shown: str
) -> None:
    world = World(Weather(regions=True))
    region = "eu-west-1" if location == "EU" else location
    world.cloud.create_bucket(0.0, "bucket", location, request_region=region)
    for passing in (region, ""):
        world.cloud.check_region("bucket", passing)
    found = refusal(lambda: world.cloud.check_region("bucket", "us-east-1"))
    assert found[:2] == (code, status)
    assert world.cloud.region_of(world.cloud.bucket("bucket")) == shown


def test_a_bucket_is_made_in_the_region_of_the_request() -> None:
    world = World(Weather(regions=True))
    for location, region in (("", "eu-west-1"), ("eu-west-1", "us-east-1")):
        made = refusal(
            partial(world.cloud.create_bucket, 0.0, "b-1", location, request_region=region)
        )
        assert made[0] == "IllegalLocationConstraintException"
    world.cloud.create_bucket(0.0, "b-1", "", request_region="us-east-1")


def test_old_notification_rules_deliver_until_the_new_ones_are_in_force() -> None:
    world = World(Weather(notification_s=(300.0, 300.0), scale=0.1))
    world.bucket()
    old, new = world.queue("old"), world.queue("new")
    world.cloud.restore_rules("bucket", [world.rule(old)])
    world.cloud.configure_notifications(0.0, "bucket", [world.rule(new)])
    assert [rule.id for rule in world.cloud.rules("bucket")] == ["new"]
    assert world.cloud.late_rules.pending(29.9) == ["bucket"]
    assert world.cloud.late_rules.pending(30.0) == []
    world.put(29.9, "early")
    world.put(30.0, "late")
    assert (world.keys(old), world.keys(new)) == (["early"], ["late"])
    assert world.cloud.draws.counts == {"notification rules late": 1}


def test_an_event_before_the_first_rules_are_in_force_is_lost() -> None:
    world = World(Weather(notification_s=(300.0, 300.0)))
    world.bucket()
    queue = world.queue()
    world.cloud.configure_notifications(0.0, "bucket", [world.rule(queue)])
    world.put(1.0, "lost")
    assert world.keys(queue) == []


def test_events_are_late_repeated_and_out_of_order() -> None:
    world = World(Weather(seed="1", event_s=(0.0, 10.0), event_repeat_rate=0.5))
    world.bucket()
    queue = world.queue()
    world.cloud.restore_rules("bucket", [world.rule(queue)])
    for number in range(20):
        world.put(0.0, f"k{number:02}")
    assert not queue.has_visible(0.0)
    assert len(world.keys(queue)) > 20
    by_time = sorted(queue.messages(), key=lambda message: message.visible_at_s)
    assert [m.id for m in by_time] != [m.id for m in queue.messages()]
    assert all(0 <= message.visible_at_s <= 10 for message in by_time)


def test_without_weather_nothing_is_counted() -> None:
    world = World(NO_WEATHER)
    world.bucket(versioned=True)
    queue = world.queue()
    world.cloud.configure_notifications(0.0, "bucket", [world.rule(queue)])
    world.put(0.0)
    assert world.cloud.read_object(0.0, "bucket", "k").size == 4
    assert world.keys(queue) == ["k"]
    assert world.cloud.draws.counts == {}
