"""Runs on simulated hosts: the ports `RunStarter` and `FunctionCredentials` in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypedDict

from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import GrantedLease
from orchgpu.ports import Credentials, FunctionCredentials, RunStarter
from remote_gpu.wire.runs import RunOrder
from simulator.faults.host import SimHost
from simulator.faults.memory_cloud import Faults

#: Of credentials; shorter than AWS's, so that runs live longer than theirs.
CREDENTIALS_S = 20.0


class OnHosts(TypedDict):
    """The ports of an orchestrator for runs on hosts."""

    runs: RunStarter
    credentials: FunctionCredentials


class RunTable:
    """The runs that hosts have begun, which outlive the orchestrators that ordered them."""

    def __init__(
        self,
        hosts: Mapping[str, SimHost],
        nursery: Nursery,
        run: Callable[[str], Awaitable[object]],
    ) -> None:
        """`run`: the runner on a host, with its event as JSON text."""
        self._hosts = hosts
        self._nursery = nursery
        self._run = run
        self.begun: set[str] = set()  #: leases
        self.renewals = 0

    def order(self, granted: GrantedLease, order: RunOrder) -> bool:
        """Whether this order began the run. Raises UNAVAILABLE."""
        host = self._hosts[granted.lease.shares[0].host]
        lease = granted.lease.id
        if not host.running.is_set() or lease not in host.installed_leases:
            raise AppError(ErrorCode.UNAVAILABLE, f"{host.id} does not take the order of {lease}")
        if lease in self.begun:
            self.renewals += 1
            return False
        self.begun.add(lease)
        self._nursery.start(self._follow(order.event), "run")
        return True

    async def _follow(self, event: str) -> None:
        await self._run(event)


class MemoryCredentials:
    """`FunctionCredentials` of roles that are not looked at."""

    def __init__(self, clock: Clock, faults: Faults | None = None) -> None:
        self._clock = clock
        self._faults = faults or Faults()
        self._issued = 0

    async def issue(self, role: str, name: str) -> Credentials:
        async def made() -> Credentials:
            self._issued += 1
            key = {"AWS_ACCESS_KEY_ID": f"{role} {name} {self._issued}"}
            return Credentials(variables=key, ends_s=self._clock.wall_s() + CREDENTIALS_S)

        return await self._faults.around(made)


class MemoryRuns:
    """`RunStarter` of one orchestrator, with the faults of its network."""

    def __init__(self, table: RunTable, faults: Faults) -> None:
        self._table = table
        self._faults = faults

    async def start(self, granted: GrantedLease, order: RunOrder) -> bool:
        async def placed() -> bool:
            return self._table.order(granted, order)

        return await self._faults.around(placed)
