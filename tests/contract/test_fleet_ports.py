"""Contract of the providers of a fleet's hosts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber
from moto import mock_aws

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.fleet import AutoScalingFleet
from orchgpu.fleet.ports.memory import MemoryFleet
from orchgpu.fleet.ports.port import FleetPort, PortGroup
from orchgpu.fleet.ports.processes import ProcessFleet, ProcessSettings, write_settings
from orchgpu.fleet.ports.registry import open_port
from orchgpu.fleet.ports.skypilot import SkyFleet
from tests.fleet_ports import (
    GROUP,
    WITHIN_S,
    OneAtATime,
    aws,
    ecs_fleet,
    end_all,
    grown,
    in_loop,
    made_cluster,
    made_tasks,
    seen,
    until,
)

#: A host that runs until it is ended.
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)", "{host}")

Opened = Callable[[], FleetPort]


@pytest.fixture(params=["memory", "processes", "auto-scaling", "ecs", "skypilot"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens a port to one provider; again as after a restart."""
    if request.param == "auto-scaling":
        with mock_aws():
            made_group()
            yield auto_scaling_fleet
        return
    if request.param == "ecs":
        with mock_aws():
            made_cluster()
            yield ecs_fleet
        return
    if request.param == "memory":
        memory = MemoryFleet(time.time, (GROUP,))
        yield lambda: memory
        return
    if request.param == "skypilot":
        made_tasks(tmp_path)
        yield lambda: SkyFleet(tmp_path)
        return
    write_settings(tmp_path, ProcessSettings(command=SLEEP))
    yield lambda: ProcessFleet(tmp_path)
    asyncio.run(end_all(ProcessFleet(tmp_path)))


def auto_scaling_fleet() -> AutoScalingFleet:
    client = aws("autoscaling")
    return AutoScalingFleet(AwsClient(OneAtATime(client)), time.time, client.close)


def made_group(**given: object) -> None:
    """A group of at most 5 instances, as docs/how-to/fleet.md asks for it."""
    with closing(aws("ec2")) as ec2, closing(aws("autoscaling")) as client:
        subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        data = {"ImageId": "ami-12c6146b", "InstanceType": "g5.xlarge"}  # moto has it
        ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
        fields = {"MinSize": 0, "MaxSize": 5, "NewInstancesProtectedFromScaleIn": True, **given}
        client.create_auto_scaling_group(
            AutoScalingGroupName=GROUP,
            LaunchTemplate={"LaunchTemplateName": "gpu", "Version": "$Latest"},
            VPCZoneIdentifier=subnet,
            **fields,
        )


@in_loop
async def test_a_new_group_is_empty(opened: Opened) -> None:
    assert await seen(opened()) == PortGroup(name=GROUP, size=0, hosts=())


@in_loop
async def test_sizes_are_absolute_and_growing_never_shrinks(opened: Opened) -> None:
    port = opened()
    first = await grown(port, 2)
    again = await grown(port, 2)
    assert [host.id for host in first.hosts] == [host.id for host in again.hosts]
    await port.grow(GROUP, 1)
    assert (await seen(port)).size == 2
    await port.close()


@in_loop
async def test_hosts_have_names_of_their_own_and_the_time_of_their_launch(opened: Opened) -> None:
    port, before_s = opened(), time.time()
    group = await grown(port, 3)
    assert len({host.id for host in group.hosts}) == 3
    for host in group.hosts:
        launched_s = before_s if host.launched_s is None else host.launched_s  # None: not stated
        assert before_s - 1 <= launched_s <= time.time() + 1
    await port.close()


@in_loop
async def test_a_stop_ends_one_host_and_lowers_the_size_once(opened: Opened) -> None:
    port = opened()
    first, second = (await grown(port, 2)).hosts
    await port.stop(GROUP, first.id)
    group = await until(port, lambda group: len(group.hosts) == 1)
    await port.stop(GROUP, first.id)
    await port.stop(GROUP, "unknown")
    assert await seen(port) == group
    assert (group.size, group.hosts[0].id) == (1, second.id)
    await port.close()


@in_loop
async def test_a_withdrawal_ends_no_host(opened: Opened) -> None:
    port = opened()
    group = await grown(port, 2)
    await port.withdraw(GROUP)
    await port.withdraw(GROUP)
    assert await seen(port) == group
    await port.close()


@in_loop
async def test_two_fleets_that_grow_together_are_one(opened: Opened) -> None:
    one, two = opened(), opened()
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, p.grow(GROUP, 3)) for p in (one, two)))
    group = await until(two, lambda group: len(group.hosts) >= 3)
    assert (group.size, len(group.hosts)) == (3, 3)
    assert await seen(one) == group
    await one.close()
    if two is not one:
        await two.close()


@in_loop
async def test_hosts_outlive_the_port(opened: Opened) -> None:
    port = opened()
    group = await grown(port, 2)
    await port.close()
    assert await seen(opened()) == group


@in_loop
async def test_what_does_not_come_is_missing_until_it_is_withdrawn() -> None:
    port = MemoryFleet(time.time, (GROUP,), refusing={GROUP: "no capacity"})
    await port.grow(GROUP, 2)
    assert await seen(port) == PortGroup(name=GROUP, size=2, hosts=(), refusal="no capacity")
    await port.withdraw(GROUP)
    port.refusing.clear()
    assert await seen(port) == PortGroup(name=GROUP, size=0, hosts=())
    with pytest.raises(AppError, match="no group 'other'") as caught:
        await port.list(("other",))
    assert caught.value.code is ErrorCode.NOT_FOUND


# ---------------------------------------------------------------------- processes


def running(host: str) -> bool:
    """Whether a process has this host in its command line."""
    found = (file for file in Path("/proc").glob("[0-9]*/cmdline"))
    for file in found:
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if host.encode() in words and b"-c" in words:
            return True
    return False


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if holds():
                return
            await asyncio.sleep(0.02)


@in_loop
async def test_the_program_of_a_host_ends_with_it_however_that_is(tmp_path: Path) -> None:
    write_settings(tmp_path, ProcessSettings(command=SLEEP))
    port = ProcessFleet(tmp_path)
    stopped, killed = (host.id for host in (await grown(port, 2)).hosts)
    record = tmp_path / f"groups/{GROUP}/{killed}.json"
    await eventually(lambda: running(stopped) and "pid" in json.loads(record.read_text()))
    await port.stop(GROUP, stopped)
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
    await eventually(lambda: not running(stopped) and not running(killed))
    await end_all(port)


@in_loop
async def test_a_host_ends_with_its_program(tmp_path: Path) -> None:
    write_settings(tmp_path, ProcessSettings(command=(sys.executable, "-c", "pass")))
    port = ProcessFleet(tmp_path)
    await port.grow(GROUP, 1)
    await until(port, lambda group: not group.hosts)
    await end_all(port)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A file, and the process that holds its lock."""
    lock = tmp_path / "lock"
    lock.touch()
    program = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(lock)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield lock, holder
        holder.kill()


@in_loop
async def test_hosts_end_with_their_lifeline(
    tmp_path: Path, locked: tuple[Path, subprocess.Popen[bytes]]
) -> None:
    lock, lifeline = locked
    write_settings(tmp_path, ProcessSettings(command=SLEEP, delay_s=0.1, lifeline=str(lock)))
    port = ProcessFleet(tmp_path)
    (host,) = (await grown(port, 1)).hosts
    await eventually(lambda: running(host.id))
    lifeline.kill()
    await eventually(lambda: not running(host.id))
    await end_all(port)


# ---------------------------------------------------------------------- EC2 Auto Scaling


@in_loop
async def test_a_group_ends_no_host_by_its_own_choice() -> None:
    with mock_aws():
        made_group()
        port = auto_scaling_fleet()
        first, *others = (await grown(port, 3)).hosts
        await port.stop(GROUP, first.id)
        await port.withdraw(GROUP)
        with closing(aws("autoscaling")) as client:
            (found,) = client.describe_auto_scaling_groups()["AutoScalingGroups"]
        assert found["DesiredCapacity"] == 2
        assert sorted(one["InstanceId"] for one in found["Instances"]) == [o.id for o in others]
        await port.close()


@in_loop
async def test_a_group_keeps_its_own_limits(caplog: pytest.LogCaptureFixture) -> None:
    with mock_aws():
        made_group(MinSize=1, MaxSize=2, NewInstancesProtectedFromScaleIn=False)
        port = auto_scaling_fleet()
        await port.grow(GROUP, 9)
        assert (await seen(port)).size == 2
        first, second = (await seen(port)).hosts
        await port.stop(GROUP, first.id)
        with pytest.raises(AppError, match="set its MinSize to 0"):
            await port.stop(GROUP, second.id)
        with pytest.raises(AppError, match="no Auto Scaling group 'other'") as caught:
            await port.list(("other",))
        assert caught.value.code is ErrorCode.NOT_FOUND
        with pytest.raises(AppError, match="no Auto Scaling group 'other'"):
            await port.grow("other", 1)
        await port.close()
    assert "does not protect new instances" in caplog.text
    assert "at most 2 instances" in caplog.text


def group_answer(*instances: tuple[str, str]) -> dict[str, Any]:
    listed = [
        {
            "InstanceId": name,
            "LifecycleState": state,
            "AvailabilityZone": "a",
            "HealthStatus": "Healthy",
            "ProtectedFromScaleIn": True,
        }
        for name, state in instances
    ]
    group = {
        "AutoScalingGroupName": GROUP,
        "MinSize": 0,
        "MaxSize": 5,
        "DesiredCapacity": 2,
        "DefaultCooldown": 0,
        "AvailabilityZones": ["a"],
        "HealthCheckType": "EC2",
        "CreatedTime": datetime.now(UTC),
        "Instances": listed,
        "NewInstancesProtectedFromScaleIn": True,
    }
    return {"AutoScalingGroups": [group]}


def activity(status: str, at_s: float, message: str = "-") -> dict[str, Any]:
    return {
        "ActivityId": "1",
        "AutoScalingGroupName": GROUP,
        "Cause": "an order",
        "StartTime": datetime.fromtimestamp(at_s, UTC),
        "StatusCode": status,
        "StatusMessage": message,
    }


@pytest.mark.parametrize(
    ("activities", "refusal"),
    [
        ((activity("Failed", 2_000.0, "no capacity"),), "no capacity"),
        ((activity("InProgress", 2_001.0), activity("Failed", 2_000.0, "quota")), "quota"),
        ((activity("Successful", 2_001.0), activity("Failed", 2_000.0, "quota")), ""),
        ((activity("Failed", 500.0, "of another order"),), ""),
        ((), ""),
    ],
)
@in_loop
async def test_refusals_are_read_from_the_activities_of_the_group(
    activities: tuple[dict[str, Any], ...], refusal: str
) -> None:
    client = aws("autoscaling")
    with Stubber(client) as answers:
        ending = ("i-1", "InService"), ("i-2", "Terminating:Wait")
        answers.add_response("describe_auto_scaling_groups", group_answer(*ending))
        answers.add_response("describe_scaling_activities", {"Activities": list(activities)})
        port = AutoScalingFleet(AwsClient(client), lambda: 1_000.0, client.close)
        group = await seen(port)
    assert [host.id for host in group.hosts] == ["i-1"]
    assert (group.size, group.refusal) == (2, refusal)
    await port.close()


def test_providers_are_named(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="provider 'cloud' is unknown"):
        open_port("cloud")
    for incomplete in ("ecs", "skypilot"):
        with pytest.raises(AppError, match=f"provider '{incomplete}' is unknown"):
            open_port(incomplete)
    with pytest.raises(AppError, match="is not a folder with SkyPilot's tasks"):
        open_port(f"skypilot:{tmp_path / 'none'}")
    assert isinstance(open_port(f"skypilot:{tmp_path}"), SkyFleet)
    with pytest.raises(AppError, match=r"processes\.json"):
        open_port(f"processes:{tmp_path}")
