"""Asynchronous invocation and the pool of environments, by AWS's rules."""

from __future__ import annotations

from typing import Any

import pytest

from local_cloud.model.errors import CloudError
from local_cloud.model.functions.environments import EnvironmentPool
from local_cloud.model.functions.function import InvocationQueue, InvokeConfig, Outcome
from local_cloud.model.functions.functions import Functions, FunctionSettings

ARN = "arn:aws:lambda:us-east-1:000000000000:function:f"
ROLE = "arn:aws:iam::000000000000:role/f"
FAILED = Outcome(payload='{"errorMessage": "no"}', error="Unhandled")
DONE = Outcome(payload="null")
THROTTLED = Outcome(payload="", throttled=True)


def queue(**config: Any) -> InvocationQueue:
    return InvocationQueue(
        function_arn=ARN, config=InvokeConfig(**{"on_failure": "arn:dead", **config})
    )


def started(events: InvocationQueue, now_s: float) -> list[str]:
    return [i.request_id for i in events.start_due(now_s)[0]]


def test_an_event_runs_once_and_is_gone() -> None:
    events = queue(on_success="arn:ok")
    events.accept(0.0, "1", '{"a": 1}')
    assert started(events, 0.0) == ["1"]
    assert started(events, 0.0) == []
    (record,) = events.ended(1.0, "1", DONE)
    context: Any = record.body["requestContext"]
    assert (record.arn, context["condition"]) == ("arn:ok", "Success")
    assert events.waiting() == 0
    assert events.next_due_at_s() is None


def test_errors_are_retried_after_one_and_two_minutes_then_recorded() -> None:
    events = queue()
    events.accept(0.0, "1", '{"a": 1}')
    at_s = 0.0
    for due_at_s in (0.0, 61.0, 182.0):
        assert events.next_due_at_s() == due_at_s
        assert started(events, due_at_s - 0.1) == []
        assert started(events, due_at_s) == ["1"]
        at_s = due_at_s + 1.0
        records = events.ended(at_s, "1", FAILED)
    (record,) = records
    assert record.body == {
        "version": "1.0",
        "timestamp": "1970-01-01T00:03:03.000Z",
        "requestContext": {
            "requestId": "1",
            "functionArn": f"{ARN}:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": 3,
        },
        "requestPayload": {"a": 1},
        "responseContext": {
            "statusCode": 200,
            "executedVersion": "$LATEST",
            "functionError": "Unhandled",
        },
        "responsePayload": {"errorMessage": "no"},
    }


def test_a_throttled_event_backs_off_until_it_is_too_old() -> None:
    events = queue(event_age_s_max=60.0)
    events.accept(0.0, "1", "{}")
    tries: list[float] = []
    records: list[Any] = []
    last_s = 0.0
    while not records:
        at_s = events.next_due_at_s()
        assert at_s is not None
        last_s = at_s
        starting, records = events.start_due(at_s)
        if starting:
            tries.append(at_s)
            assert events.ended(at_s, "1", THROTTLED) == []
    assert tries == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]
    assert 60.0 <= last_s <= 60.1
    context = records[0].body["requestContext"]
    assert (context["condition"], context["approximateInvokeCount"]) == ("EventAgeExceeded", 0)
    assert "responsePayload" not in records[0].body


def throttled_events(*, backs_off: bool) -> InvocationQueue:
    """Two events that found no slot: the next try is after 1 s."""
    events = queue()
    events.backs_off = backs_off
    for name in ("1", "2"):
        events.accept(0.0, name, "{}")
    for name in started(events, 0.0):
        events.ended(0.0, name, THROTTLED)
    return events


def test_a_free_slot_ends_the_pause_of_the_oldest_throttled_event() -> None:
    events = throttled_events(backs_off=False)
    assert started(events, 0.5) == []
    assert events.slot_free(0.5)
    assert started(events, 0.5) == ["1"]
    events.ended(0.6, "1", THROTTLED)  # another function took the slot: it is the oldest still
    assert events.slot_free(0.7)
    assert started(events, 0.7) == ["1"]
    assert events.slot_free(0.8)
    assert started(events, 0.8) == ["2"]
    assert not events.slot_free(0.9)
    assert started(events, 1.0) == []  # its first pause ends, and it runs already
    assert events.ended(1.0, "1", FAILED) == []
    assert not events.slot_free(1.0)  # a retry after an error keeps its minute
    assert started(events, 60.9) == []
    assert started(events, 61.0) == ["1"]


def test_in_weather_a_free_slot_ends_no_pause() -> None:
    events = throttled_events(backs_off=True)
    assert not events.slot_free(0.5)
    assert started(events, 0.999) == []
    assert started(events, 1.0) == ["1", "2"]


def test_a_slot_that_is_free_too_late_finds_an_expired_event() -> None:
    events = queue(event_age_s_max=60.0)
    events.backs_off = False
    events.accept(0.0, "1", "{}")
    started(events, 0.0)
    events.ended(0.0, "1", THROTTLED)
    assert events.slot_free(61.0)
    starting, (record,) = events.start_due(61.0)
    assert starting == []
    assert record.body["requestContext"]["condition"] == "EventAgeExceeded"  # type: ignore[index]


def test_why_an_event_does_not_run_is_noted_once() -> None:
    events = queue(retries_max=0, event_age_s_max=60.0)
    noted: list[tuple[str, str]] = []
    events.note = lambda invocation, condition: noted.append((invocation.request_id, condition))
    for name, end in (("failing", FAILED), ("good", DONE), ("late", THROTTLED)):
        events.accept(0.0, name, "{}")
        started(events, 0.0)
        events.ended(0.0, name, end)
    for at_s in (1.0, 3.0):
        started(events, at_s)
        events.ended(at_s, "late", THROTTLED)
    started(events, 61.0)
    assert noted == [
        ("failing", "RetriesExhausted"),
        ("late", "Throttled"),
        ("late", "EventAgeExceeded"),
    ]


def test_a_deleted_functions_run_may_end_late() -> None:
    events = queue()
    events.accept(0.0, "1", "{}")
    started(events, 0.0)
    events.forget()
    assert events.ended(1.0, "1", FAILED) == []


def test_environments_are_reused_last_in_first_out() -> None:
    pool = EnvironmentPool()
    first, second = pool.acquire("f", "r"), pool.acquire("f", "r")
    assert first is not None
    assert second is not None
    assert (first[1], second[1]) == (True, True)
    pool.release(1.0, first[0].id)
    pool.release(2.0, second[0].id)
    assert pool.acquire("f", "r") == (second[0], False)
    assert pool.acquire("f", "other code") is not None
    assert pool.outdated(3.0, {"f": "other code"}) == [first[0].id]
    assert pool.outdated(700.0, {"f": "r"}) == [first[0].id]


def test_idle_environments_beyond_their_number_end_oldest_first() -> None:
    pool = EnvironmentPool(idle_max=2)
    made = [pool.acquire("f", "r") for _ in range(4)]
    for at_s, slot in enumerate(made):
        assert slot is not None
        pool.release(float(-at_s), slot[0].id)  # the last one is idle longest
    assert pool.outdated(1.0, {"f": "r"}) == [4, 3]


def test_reserved_concurrency_limits_one_function_and_is_kept_from_the_others() -> None:
    pool = EnvironmentPool(concurrency_max=3)
    pool.reserved["f"] = 1
    held = pool.acquire("f", "r")
    assert held is not None
    assert pool.acquire("f", "r") is None
    assert pool.acquire("g", "r") is not None
    assert pool.acquire("h", "r") is not None
    assert pool.acquire("g", "r") is None
    pool.discard(held[0].id)
    assert pool.acquire("f", "r") is not None
    assert len(pool) == 3


@pytest.mark.parametrize(("limit", "most"), [(1000, 900), (200, 100), (64, 32), (1, 1)])
def test_a_reservation_leaves_a_part_of_the_same_limit(limit: int, most: int) -> None:
    functions = Functions(concurrency_max=limit)
    made = functions.create(0.0, FunctionSettings(name="f", given={"Role": ROLE}))
    functions.reserve(made, most)
    with pytest.raises(CloudError, match=rf"minimum value of \[{limit - most}\]"):
        functions.reserve(made, most + 1)
    assert made.reserved == most
