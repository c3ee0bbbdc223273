"""Shared by the tests of providers of hosts: a group, its states, and stand-ins of providers."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import boto3
from moto.ec2.utils import generate_instance_identity_document
from moto.ecs.models import ecs_backends

from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.ecs_fleet import EcsFleet
from orchgpu.fleet.ports.port import FleetPort, PortGroup
from tests import sky_stand_in

GROUP, CLUSTER, ACCOUNT = "g", "gpus", "123456789012"
#: A generous limit for what a loaded machine does at once otherwise.
WITHIN_S = 60.0


def in_loop(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """The test in an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(test(**fixtures))

    return run


def aws(service: str) -> Any:
    return boto3.client(
        service, "eu-west-1", aws_access_key_id="testing", aws_secret_access_key="testing"
    )


class OneAtATime:
    """A client of moto in this process, whose state two calls at the same moment would corrupt."""

    _lock = threading.RLock()

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)

        def call(*args: Any, **given: Any) -> Any:
            with self._lock:
                return found(*args, **given)

        return call if callable(found) else found


class WithTokens(OneAtATime):
    """ECS with client tokens, which moto ignores: of equal ones there is one task."""

    _made = WeakKeyDictionary[Any, dict[str, Any]]()  #: by moto's backend

    def run_task(self, **given: Any) -> Any:
        with self._lock:
            made = self._made.setdefault(ecs_backends[ACCOUNT]["eu-west-1"], {})
            token = given["clientToken"]
            if token not in made:
                made[token] = self._client.run_task(**given)
            return made[token]


def ecs_fleet() -> EcsFleet:
    client = aws("ecs")
    return EcsFleet(AwsClient(WithTokens(client)), CLUSTER, time.time, client.close)


def made_cluster(group: str = GROUP) -> None:
    """A cluster with one instance; moto has no managed ones, and none that comes by itself."""
    with closing(aws("ec2")) as ec2, closing(aws("ecs")) as client:
        (instance,) = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)["Instances"]
        document = generate_instance_identity_document(
            boto3.resource("ec2", "eu-west-1").Instance(instance["InstanceId"])
        )
        client.create_cluster(clusterName=CLUSTER)
        client.register_container_instance(
            cluster=CLUSTER, instanceIdentityDocument=json.dumps(document)
        )
        client.create_capacity_provider(
            name=group,
            autoScalingGroupProvider={
                "autoScalingGroupArn": f"arn:aws:autoscaling:eu-west-1:{ACCOUNT}:group/a"
            },
        )
        gpud = {"name": "gpud", "image": "gpud", "memory": 100, "cpu": 10}
        client.register_task_definition(family=group, containerDefinitions=[gpud])
        client.register_task_definition(family="other", containerDefinitions=[gpud])
        client.run_task(cluster=CLUSTER, taskDefinition=group)


def made_tasks(folder: Path) -> None:
    """A folder of SkyPilot's tasks, and its program; every look is a new one."""
    (folder / f"{GROUP}.yaml").write_text("run: gpud\n")
    command = [sys.executable, "-S", "-E", str(Path(sky_stand_in.__file__)), str(folder)]
    (folder / "skypilot.json").write_text(json.dumps({"command": command, "look_s": 0}))


async def end_all(port: FleetPort) -> None:
    for host in (await seen(port)).hosts:
        await port.stop(GROUP, host.id)
    await until(port, lambda group: not group.hosts)
    await port.close()


async def seen(port: FleetPort) -> PortGroup:
    (group,) = await port.list((GROUP,))
    return group


async def until(port: FleetPort, holds: Callable[[PortGroup], bool]) -> PortGroup:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if holds(group := await seen(port)):
                return group
            await asyncio.sleep(0.02)


async def grown(port: FleetPort, size: int) -> PortGroup:
    await port.grow(GROUP, size)
    return await until(port, lambda group: len(group.hosts) == size)
