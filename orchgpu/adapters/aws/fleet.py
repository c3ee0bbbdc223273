"""EC2 Auto Scaling as a provider of a fleet's hosts.

A host is an instance, and its id at the scheduler the instance's (`gpud --host-id i-…`). The size
of a group is raised by SetDesiredCapacity; it is lowered only with the end of an instance
(TerminateInstanceInAutoScalingGroup), so the group never chooses which one ends. Groups must
protect new instances from scale-in, have a minimum of 0, and the AZRebalance process suspended:
see docs/how-to/fleet.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.api import AwsClient, Shape
from orchgpu.adapters.aws.endpoints import Clients, resolve
from orchgpu.fleet.ports.port import PortGroup, PortHost

logger = logging.getLogger(__name__)

SERVICE = "autoscaling"
#: States of an instance that ends or is not a host of the group any more.
_GONE = ("Terminating", "Terminated", "Detach", "Warmed")
#: Results of a scaling activity that delivered nothing.
_FAILED = ("Failed", "Cancelled")
#: The newest activities of a group; a refusal is one of the first.
_ACTIVITIES = 10


class BlockingFleet(ABC):
    """`FleetPort` over calls that block, each in a thread."""

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close

    async def list(self, groups: Sequence[str]) -> tuple[PortGroup, ...]:
        return await asyncio.to_thread(self._listed, groups)

    async def grow(self, group: str, size: int) -> None:
        await asyncio.to_thread(self._grow, group, size)

    async def withdraw(self, group: str) -> None:
        await asyncio.to_thread(self._withdraw, group)

    async def stop(self, group: str, host: str) -> None:
        await asyncio.to_thread(self._stop, group, host)

    async def close(self) -> None:
        self._close()

    @abstractmethod
    def _listed(self, groups: Sequence[str]) -> tuple[PortGroup, ...]: ...

    @abstractmethod
    def _grow(self, group: str, size: int) -> None: ...

    @abstractmethod
    def _withdraw(self, group: str) -> None: ...

    @abstractmethod
    def _stop(self, group: str, host: str) -> None: ...


class AutoScalingFleet(BlockingFleet):
    """`FleetPort` of the Auto Scaling groups of one region."""

    def __init__(
        self, client: AwsClient, wall_s: Callable[[], float], close: Callable[[], object]
    ) -> None:
        super().__init__(close)
        self._client, self._wall_s = client, wall_s
        self._opened_s = wall_s()
        self._asked_s: dict[str, float] = {}  #: by group: an older refusal is of another order
        self._warned: set[str] = set()

    def _listed(self, groups: Sequence[str]) -> tuple[PortGroup, ...]:
        if not groups:
            return ()
        pages = self._client.pages("describe_auto_scaling_groups", AutoScalingGroupNames=[*groups])
        found: dict[str, Shape] = {
            one["AutoScalingGroupName"]: one for page in pages for one in page["AutoScalingGroups"]
        }
        return tuple(self._group(name, found.get(name)) for name in groups)

    def _group(self, name: str, found: Shape | None) -> PortGroup:
        if found is None:
            raise _absent(name)
        self._warn(name, found)
        hosts = _hosts(found)
        size = int(found["DesiredCapacity"])
        refusal = self._refusal(name) if size > len(hosts) else ""
        return PortGroup(name=name, size=size, hosts=hosts, refusal=refusal)

    def _warn(self, name: str, found: Shape) -> None:
        """Log once what would let the group end hosts by its own choice."""
        if name in self._warned or found.get("NewInstancesProtectedFromScaleIn"):
            return
        self._warned.add(name)
        text = "group %s does not protect new instances from scale-in: it may end hosts with leases"
        logger.warning(text, name, extra={"event": "unprotected"})

    def _refusal(self, group: str) -> str:
        """The message of the newest activity that failed since the order; capacity is not an error
        of a call."""
        answer = self._client.describe_scaling_activities(
            AutoScalingGroupName=group, MaxRecords=_ACTIVITIES
        )
        since_s = self._asked_s.get(group, self._opened_s)
        for activity in answer["Activities"]:  # the newest first
            if activity["StartTime"].timestamp() < since_s:
                break
            if activity["StatusCode"] in _FAILED:
                return str(activity.get("StatusMessage") or activity["StatusCode"])
            if activity["StatusCode"] == "Successful":
                break
        return ""

    def _grow(self, group: str, size: int) -> None:
        found = self._found(group)
        most = int(found["MaxSize"])
        if size > most:
            text = (
                f"group {group} has at most {most} instances (MaxSize); its offer asks for {size}"
            )
            logger.warning(text, extra={"event": "max_size"})
        wanted = min(size, most)
        if wanted > int(found["DesiredCapacity"]):
            self._asked_s[group] = self._wall_s()
            self._set(group, wanted)

    def _withdraw(self, group: str) -> None:
        found = self._found(group)
        here = max(len(_hosts(found)), int(found["MinSize"]))
        if here < int(found["DesiredCapacity"]):
            self._set(group, here)

    def _set(self, group: str, size: int) -> None:
        self._client.set_desired_capacity(
            AutoScalingGroupName=group, DesiredCapacity=size, HonorCooldown=False
        )

    def _stop(self, group: str, host: str) -> None:
        """End an instance that the group still has; another call would lower the size again."""
        found = self._found(group)
        if all(one.id != host for one in _hosts(found)):
            return
        if int(found["DesiredCapacity"]) <= int(found["MinSize"]):
            text = f"group {group} has a minimum of {found['MinSize']}: set its MinSize to 0"
            raise AppError(ErrorCode.CONFLICT, f"{text}; the offer's min holds instead")
        self._client.terminate_instance_in_auto_scaling_group(
            InstanceId=host, ShouldDecrementDesiredCapacity=True
        )

    def _found(self, group: str) -> Shape:
        answer = self._client.describe_auto_scaling_groups(AutoScalingGroupNames=[group])
        if not answer["AutoScalingGroups"]:
            raise _absent(group)
        found: Shape = answer["AutoScalingGroups"][0]
        return found


def _absent(group: str) -> AppError:
    text = f"there is no Auto Scaling group {group!r} in this region"
    return AppError(ErrorCode.NOT_FOUND, text)


def _hosts(found: Shape) -> tuple[PortHost, ...]:
    """The instances of a group that are or will be in service."""
    living = [
        one["InstanceId"]
        for one in found["Instances"]
        if not one["LifecycleState"].startswith(_GONE)
    ]
    return tuple(PortHost(id=name) for name in sorted(living))


def auto_scaling(region: str | None) -> AutoScalingFleet:
    """The groups of a region; None: that of the environment. Raises UNAVAILABLE without a cloud."""
    clients = Clients(lambda service: resolve(service, region=region))
    return AutoScalingFleet(clients(SERVICE), time.time, clients.close)
