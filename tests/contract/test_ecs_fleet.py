"""ECS Managed Instances as a provider of hosts: answers that moto does not give."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.stub import Stubber

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.ecs_fleet import EcsFleet
from orchgpu.fleet.ports.port import PortGroup
from tests.fleet_ports import ACCOUNT, CLUSTER, GROUP, aws, seen

NOW_S = 1_000.0
ACTIVE = {"capacityProviders": [{"name": GROUP, "status": "ACTIVE"}]}


def task(name: str, status: str, **given: Any) -> dict[str, Any]:
    arn = f"arn:aws:ecs:eu-west-1:{ACCOUNT}:task/{CLUSTER}/{name}"
    desired = "STOPPED" if status == "STOPPED" else "RUNNING"
    seen = {"taskArn": arn, "lastStatus": status, "desiredStatus": desired}
    return {**seen, "startedBy": "orchgpu-fleet", **given}


def listed(*tasks: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The answers of a list of tasks and their states; no state is asked for without a task."""
    found = [("list_tasks", {"taskArns": [one["taskArn"] for one in tasks]})]
    return [*found, ("describe_tasks", {"tasks": [*tasks]})] if tasks else found


@contextmanager
def ecs_that_answers(*answers: tuple[str, dict[str, Any]]) -> Iterator[tuple[EcsFleet, list[Any]]]:
    """The port, with a service that gives these answers in this order; the calls that it got."""
    client, calls = aws("ecs"), list[Any]()
    client.meta.events.register(
        "provide-client-params.ecs.*", lambda params, **_: calls.append(params)
    )
    with Stubber(client) as stub:
        for call, answer in answers:
            if "code" in answer:
                stub.add_client_error(call, answer["code"], answer["message"])
            else:
                stub.add_response(call, answer)
        port = EcsFleet(AwsClient(client), CLUSTER, lambda: NOW_S, client.close)
        yield port, calls
        stub.assert_no_pending_responses()
    asyncio.run(port.close())


def test_a_task_without_an_instance_is_an_order_that_is_taken_back_by_its_id() -> None:
    living = listed(task("a", "RUNNING"), task("b", "PROVISIONING"), task("c", "PENDING"))
    ended: tuple[str, dict[str, Any]] = ("stop_task", {})
    known = ("describe_capacity_providers", ACTIVE)
    with ecs_that_answers(known, *living, *listed(), *living, ended) as (port, calls):
        group = asyncio.run(seen(port))
        asyncio.run(port.withdraw(GROUP))
    assert ([host.id for host in group.hosts], group.size) == (["a", "c"], 3)
    assert calls[-1]["task"].endswith("/b")


@pytest.mark.parametrize(
    ("stopped", "refusal"),
    [
        (
            task("x", "STOPPED", stopCode="TaskFailedToStart", stoppedReason="no capacity"),
            "no capacity",
        ),
        (task("x", "STOPPED", stopCode="UserInitiated", stoppedReason="ended by its fleet"), ""),
        (task("x", "STOPPED", stopCode="TaskFailedToStart", startedBy="another"), ""),
    ],
)
def test_a_task_that_could_not_start_is_missing_with_its_reason(
    stopped: dict[str, Any], refusal: str
) -> None:
    """It counts until it is withdrawn, else the fleet would order again at each look."""
    stopped["stoppedAt"] = datetime.fromtimestamp(NOW_S + 1, UTC)
    known = ("describe_capacity_providers", ACTIVE)
    with ecs_that_answers(known, *listed(), *listed(stopped)) as (port, _):
        group = asyncio.run(seen(port))
    assert (group.size, group.hosts, group.refusal) == (1 if refusal else 0, (), refusal)


@pytest.mark.parametrize(
    "answer",
    [
        {"tasks": [], "failures": [{"reason": "RESOURCE:GPU"}]},
        {"code": "ClientException", "message": "the quota of tasks in the PROVISIONING state"},
    ],
)
def test_a_task_that_is_not_made_is_missing_until_it_is_withdrawn(answer: dict[str, Any]) -> None:
    known, order = ("describe_capacity_providers", ACTIVE), ("run_task", answer)
    nothing = (*listed(), *listed())
    with ecs_that_answers(known, *nothing, order, *nothing, *listed(), *nothing) as (port, _):
        asyncio.run(port.grow(GROUP, 2))
        group = asyncio.run(seen(port))
        asyncio.run(port.withdraw(GROUP))
        after = asyncio.run(seen(port))
    assert (group.size, bool(group.refusal)) == (1, True)
    assert after == PortGroup(name=GROUP, size=0, hosts=())


def ordered(size: int, living: str, ended: str, answers: str) -> list[str]:
    """The client tokens of the orders of a fleet that sees tasks, and is given others."""
    known = ("describe_capacity_providers", ACTIVE)
    seen = (
        listed(*(task(one, "RUNNING") for one in living)),
        listed(*(task(one, "STOPPED") for one in ended)),
    )
    made = [("run_task", {"tasks": [task(one, "PROVISIONING")], "failures": []}) for one in answers]
    with ecs_that_answers(known, *seen[0], *seen[1], *made) as (port, calls):
        asyncio.run(port.grow(GROUP, size))
    return [one["clientToken"] for one in calls if "clientToken" in one]


def test_fleets_order_the_same_tasks_whatever_they_see_of_each_other() -> None:
    """By the client token: ECS gives the second one the tasks of the first."""
    first = ordered(4, "a", "", "bcd")
    assert len({*first}) == 3
    assert ordered(4, "a", "", "bcd") == first
    assert ordered(4, "ab", "", "cd") == first[1:], "the other one is under way"
    assert ordered(4, "ac", "b", "de")[:1] == first[2:], "a task that ended keeps its number"


def test_a_number_whose_task_is_seen_is_passed_over() -> None:
    """Ended tasks are forgotten after an hour, and younger ones have higher numbers."""
    assert len(ordered(3, "bc", "", "cd")) == 2


def test_tasks_that_were_just_started_count_before_they_are_listed() -> None:
    """ECS shows calls of itself with a delay; a smaller list must not start more."""
    new = [task(name, "PROVISIONING") for name in "abcd"]
    made = [("run_task", {"tasks": [one], "failures": []}) for one in new]
    known, ended = ("describe_capacity_providers", ACTIVE), task("b", "STOPPED")
    late = ("list_tasks", {"taskArns": [new[0]["taskArn"]]})
    living = (late, ("describe_tasks", {"tasks": [new[0], ended]}))
    none = (*listed(), living[1])
    nothing = (*listed(), *listed())
    answers = (known, *nothing, *made[:3], *living, *none, made[3], *living, *none)
    with ecs_that_answers(*answers) as (port, calls):
        asyncio.run(port.grow(GROUP, 3))
        asyncio.run(port.grow(GROUP, 3))
        group = asyncio.run(seen(port))
    described = [one["tasks"] for one in calls if "tasks" in one]
    assert described[0] == [one["taskArn"] for one in new[:3]]
    assert group.size == 3, "one had ended, so a fourth was started"


def test_a_capacity_provider_that_is_not_there_may_come_later() -> None:
    gone = {"capacityProviders": [{"name": GROUP, "status": "INACTIVE"}]}
    with ecs_that_answers(("describe_capacity_providers", gone)) as (port, _):
        with pytest.raises(AppError, match="no capacity provider 'g'") as caught:
            asyncio.run(seen(port))
        assert caught.value.code is ErrorCode.NOT_FOUND
