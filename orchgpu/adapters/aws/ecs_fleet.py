"""ECS Managed Instances as a provider of a fleet's hosts.

A host is a task of its own, and its id at the scheduler the task's. A group is a capacity provider
of managed instances, and the task definition of the same name, which runs gpud: ECS starts an
instance for each task, and ends one without tasks. No service stands between, since a service
chooses by itself which task ends: see docs/explanation/adr/0059-providers-of-hosts.md.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.api import AwsClient, Shape
from orchgpu.adapters.aws.endpoints import Clients, resolve
from orchgpu.adapters.aws.fleet import BlockingFleet
from orchgpu.fleet.ports.port import PortGroup, PortHost

SERVICE = "ecs"
#: `startedBy` of the tasks of a fleet: others of the same definition are not its hosts.
STARTED_BY = "orchgpu-fleet"
#: States of a task that has no instance yet.
_ORDERED = "PROVISIONING"
#: Reason of the end of a task that never ran, such as one without capacity.
_REFUSED = "TaskFailedToStart"
#: DescribeTasks takes so many.
_BATCH = 100
#: ECS lists a new task with a delay of seconds, and may list it, and then not.
_UNLISTED_S = 60.0


class EcsFleet(BlockingFleet):
    """`FleetPort` of the capacity providers of one cluster."""

    def __init__(
        self,
        client: AwsClient,
        cluster: str,
        wall_s: Callable[[], float],
        close: Callable[[], object],
    ) -> None:
        super().__init__(close)
        self._client, self._cluster, self._wall_s = client, cluster, wall_s
        self._opened_s = wall_s()
        self._known: set[str] = set()  #: groups that are there
        self._since_s: dict[str, float] = {}  #: by group: an older refusal is of another order
        self._refused: dict[str, list[str]] = {}  #: by group: reasons of tasks that were not made
        #: By group and ARN: tasks that were started here, and when.
        self._started: dict[str, dict[str, tuple[float, Shape]]] = {}

    def _listed(self, groups: Sequence[str]) -> tuple[PortGroup, ...]:
        return tuple(self._group(name) for name in groups)

    def _group(self, name: str) -> PortGroup:
        self._check(name)
        living = self._tasks(name, "RUNNING")
        hosts = [_host(task) for task in living if task["lastStatus"] != _ORDERED]
        reasons = self._reasons(name)
        return PortGroup(
            name=name,
            size=len(living) + len(reasons),
            hosts=tuple(sorted(hosts, key=lambda host: host.id)),
            refusal=reasons[-1] if reasons else "",
        )

    def _grow(self, group: str, size: int) -> None:
        self._check(group)
        living, ended = self._tasks(group, "RUNNING"), self._tasks(group, "STOPPED")
        missing = size - len(living)
        if missing <= 0:
            return
        self._forget(group)
        seen = {str(one["taskArn"]) for one in (*living, *ended)}
        # a number that is taken has one of the tasks that are seen
        for number in range(len(seen), 2 * len(seen) + missing):
            task, reason = self._ran(group, number)
            if reason:
                self._refused.setdefault(group, []).append(reason)
                return
            missing -= task not in seen
            seen.add(task)
            if not missing:
                return

    def _ran(self, group: str, number: int) -> tuple[str, str]:
        """Run the task of this number, unless it was run: its ARN, or the reason why there is none.

        Of equal tokens there is one task. Tasks that end keep their number, so fleets that grow at
        the same time order the same, whether or not they see the first tasks of each other.
        """
        token = hashlib.sha256(f"{group}|{number}".encode()).hexdigest()
        try:
            answer = self._client.run_task(
                cluster=self._cluster,
                taskDefinition=group,
                capacityProviderStrategy=[{"capacityProvider": group}],
                count=1,
                startedBy=STARTED_BY,
                clientToken=token,
            )
        except AppError as error:  # such as the quota of tasks that wait for an instance
            if error.code is not ErrorCode.INVALID:
                raise
            return "", error.message
        for task in answer["tasks"]:
            arn, started = str(task["taskArn"]), self._started.setdefault(group, {})
            started[arn] = self._wall_s(), task
            return arn, ""
        failures = [str(one.get("detail") or one["reason"]) for one in answer["failures"]]
        return "", "; ".join(failures) or "ECS has made no task"

    def _withdraw(self, group: str) -> None:
        self._check(group)
        for task in self._tasks(group, "RUNNING"):
            if task["lastStatus"] == _ORDERED:
                self._end(task, "not needed any more")
        self._forget(group)

    def _stop(self, group: str, host: str) -> None:
        self._check(group)
        for task in self._tasks(group, "RUNNING"):
            if _id(task) == host:
                self._end(task, "ended by its fleet")

    def _end(self, task: Shape, reason: str) -> None:
        self._client.stop_task(cluster=self._cluster, task=task["taskArn"], reason=reason)

    def _forget(self, group: str) -> None:
        """Take no reason for one of the order that begins now."""
        self._since_s[group] = self._wall_s()
        self._refused.pop(group, None)

    def _reasons(self, group: str) -> tuple[str, ...]:
        """The reasons of the tasks of the newest order that did not come, newest last."""
        since_s = self._since_s.get(group, self._opened_s)
        ended = [
            (one["stoppedAt"].timestamp(), str(one.get("stoppedReason") or _REFUSED))
            for one in self._tasks(group, "STOPPED")
            if one.get("stopCode") == _REFUSED and one.get("stoppedAt")
        ]
        come = [reason for at_s, reason in sorted(ended) if at_s >= since_s]
        return (*come, *self._refused.get(group, ()))

    def _tasks(self, group: str, desired: str) -> tuple[Shape, ...]:
        pages = self._client.pages(
            "list_tasks", cluster=self._cluster, family=group, desiredStatus=desired
        )
        tasks = self._new(group)
        names = dict.fromkeys(name for page in pages for name in page["taskArns"])
        tasks |= {str(one["taskArn"]): one for one in self._described([*names | tasks])}
        return tuple(
            one
            for one in tasks.values()
            if one.get("startedBy") == STARTED_BY and one["desiredStatus"] == desired
        )

    def _new(self, group: str) -> dict[str, Shape]:
        """By ARN, tasks that ECS may not list yet, as they were at their start."""
        after_s, started = self._wall_s() - _UNLISTED_S, self._started.pop(group, {})
        new = {arn: one for arn, one in started.items() if one[0] > after_s}
        if new:
            self._started[group] = new
        return {arn: task for arn, (_, task) in new.items()}

    def _described(self, names: Sequence[str]) -> Iterator[Shape]:
        for start in range(0, len(names), _BATCH):
            part = [*names[start : start + _BATCH]]
            yield from self._client.describe_tasks(cluster=self._cluster, tasks=part)["tasks"]

    def _check(self, group: str) -> None:
        """Raise NOT_FOUND for a capacity provider that the cluster does not have."""
        if group in self._known:
            return
        answer = self._client.describe_capacity_providers(
            cluster=self._cluster, capacityProviders=[group]
        )
        if not any(one["status"] == "ACTIVE" for one in answer["capacityProviders"]):
            text = f"the cluster {self._cluster} has no capacity provider {group!r}"
            raise AppError(ErrorCode.NOT_FOUND, text)
        self._known.add(group)


def _id(task: Shape) -> str:
    return str(task["taskArn"]).rpartition("/")[2]


def _host(task: Shape) -> PortHost:
    created = task.get("createdAt")
    return PortHost(id=_id(task), launched_s=created.timestamp() if created else None)


def ecs(cluster: str, region: str | None) -> EcsFleet:
    """The groups of a cluster; None: in the environment's region. Raises UNAVAILABLE without a
    cloud."""
    clients = Clients(lambda service: resolve(service, region=region))
    return EcsFleet(clients(SERVICE), cluster, time.time, clients.close)
