"""The runs of this host's leases; lives in the event loop.

A lease has one run at most, which ends with the lease, and the lease with it. A device that is a
card stays the lease's until its run is over: the user's code uses it itself, and only the end of
its processes frees it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from corekit.aio.supervise import Nursery, contained, log_contained
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import HostId, LeaseId
from gpu_scheduler.model import DeviceKind, EndReason, Share
from gpu_scheduler.protocol.host import Install
from gpu_scheduler.warm import tenant_folder
from remote_gpu.host.containers.serving import ContainerHost, ContainerLease, RunContainer
from remote_gpu.host.data.sets import DataSets
from remote_gpu.host.devices.emulation import real_shares
from remote_gpu.host.environment import worker_variables
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.steps import LeaseStep
from remote_gpu.host.runs.launch import RunStart
from remote_gpu.host.runs.output import CloudWatchSender, send
from remote_gpu.host.runs.private import has_credentials
from remote_gpu.host.runs.run import Run
from remote_gpu.host.warm.table import is_card
from remote_gpu.host.workers.tenant_storage import evict
from remote_gpu.isolation.apply import Sandbox
from remote_gpu.isolation.places import HostFiles
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.run import RunReach
from remote_gpu.isolation.sandboxes import Sandboxes
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.runs import RunOrder

logger = logging.getLogger(__name__)

#: After an orderly end of its lease, a runner has this long to end by itself.
_LEAVE_S = 2.0
#: A session is reported lost only after this, so that the end of its process is the reason.
_LOST_S = 0.5
#: At the cloud's metadata address, which serves the credentials of the host's own role.
_METADATA_PORT = 80
_SCHEMES = {"https": 443, "http": 80}
_DETAIL_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Common to the runs of one host."""

    host: HostId
    policy: IsolationPolicy
    files: HostFiles
    packages: Path  #: one folder for each tenant
    gateway_port: int
    closed_ports: tuple[int, ...] = ()  #: beside that of the metadata
    #: The machine's, that its runs may have together; None = no limit.
    memory_mib: int | None = None
    refused: str = ""  #: why this host runs no functions; "" = it does
    containers: ContainerHost | None = None  #: for images
    no_containers: str = ""  #: the reason why there are none


class FunctionRuns:
    """The runs of all leases."""

    def __init__(
        self,
        settings: RunSettings,
        leases: Leases,
        sandboxes: Sandboxes,
        data: DataSets,
        budget: Budget,
        nursery: Nursery,
    ) -> None:
        self._settings = settings
        self._leases = leases
        self._sandboxes = sandboxes
        self._data = data
        self._budget = budget
        self._nursery = nursery
        self._runs: dict[LeaseId, Run] = {}
        self._removing: set[Run] = set()  # that are gone, with files
        self._packages: dict[LeaseId, Path] = {}  # that may not be evicted
        self._storage = asyncio.Lock()  # no package is used while others are evicted

    def order(self, install: Install, order: RunOrder) -> bool:
        """Begin the run of a lease; True: this call did. A repetition renews its credentials.

        Raises Refused: this host runs no functions, or none with this order.
        """
        if (run := self._runs.get(install.lease)) is not None:
            run.renew(order)
            return False
        self._check(order)
        try:
            run = Run(
                order,
                self._nursery,
                self._container(order),
                namespaced=self._settings.policy.pid_namespace,
            )
        except (OSError, AppError) as error:
            raise Refused(Refusal.NOT_READY, f"no process for the run: {error}") from None
        self._runs[install.lease] = run
        run.gone.add_done_callback(functools.partial(self._over, install.lease, run))
        self._nursery.start(self._follow(install, run), "run")
        return True

    def _container(self, order: RunOrder) -> RunContainer | None:
        host = self._settings.containers
        return RunContainer(host, order, self._nursery) if order.image and host else None

    def keeps_device(self, lease: LeaseId) -> bool:
        """True for a lease with a card whose run is not over: giving it back has no effect."""
        entry = self._leases.table.find(lease)
        cards = entry is not None and any(is_card(share) for share in entry.install.shares)
        return cards and lease in self._runs

    def end(self, step: LeaseStep) -> None:
        """The lease is over: its run ends too, at once unless the runner ended the lease itself."""
        if (run := self._runs.get(step.lease)) is None:
            return
        why = f"its lease ended as {step.reason}"
        if step.reason in (EndReason.DONE, EndReason.RELEASED):
            asyncio.get_running_loop().call_later(_LEAVE_S, run.kill, why)
        else:
            run.kill(why)

    def ending(self, lease: LeaseId) -> Run | None:
        """The run of a lease that is over: its devices are free once that is gone."""
        return self._runs.get(lease) if self._leases.table.find(lease) is None else None

    async def explained(self, lease: LeaseId, detail: str) -> str:
        """The reason of a lost session: the end of its run, if that ends too."""
        if (run := self._runs.get(lease)) is None:
            return detail
        await asyncio.wait({run.exited}, timeout=_LOST_S)
        return self._detail(run) if run.exited.done() else detail

    async def close(self) -> None:
        """Kill all runs, and wait for the end of them and their files, or `worker_cut_s`.

        The files that are left then are removed by the next gpud.
        """
        for run in self._runs.values():
            run.kill("the host ends")
        if ends := {run.removed for run in (*self._runs.values(), *self._removing)}:
            await asyncio.wait(ends, timeout=self._budget.worker_cut_s)

    def _check(self, order: RunOrder) -> None:
        if self._settings.refused:
            text = f"this host runs no functions: {self._settings.refused}"
            raise Refused(Refusal.NOT_READY, text)
        if order.image and self._settings.containers is None:
            text = f"this host runs no images: {self._settings.no_containers}"
            raise Refused(Refusal.NOT_READY, text)
        self._check_memory(order)
        closed = {*self._settings.closed_ports, _METADATA_PORT}
        try:
            ports = _ports(order.aws)
        except ValueError as error:
            raise Refused(
                Refusal.PROTOCOL, f"an endpoint of its cloud is not a valid URL: {error}"
            ) from None
        if self._settings.policy.landlock and (wrong := closed.intersection(ports)):
            text = f"no run may connect to port {min(wrong)}, at which an endpoint of its cloud is"
            raise Refused(Refusal.DENIED, text)

    def _check_memory(self, order: RunOrder) -> None:
        """Book the memory of an order beside that of the runs which are not gone yet."""
        limit_mib = self._settings.memory_mib
        booked_mib = sum(run.order.memory_mib for run in self._runs.values())
        if limit_mib is not None and booked_mib + order.memory_mib > limit_mib:
            has = f"this host has {limit_mib} MiB for runs, of which {booked_mib} MiB are booked"
            raise Refused(Refusal.NOT_READY, f"{has}: the run needs {order.memory_mib} MiB")

    async def _follow(self, install: Install, run: Run) -> None:
        """Start the run in its sandbox, and wait for its end."""
        lease = install.lease
        over, ends_s = asyncio.Event(), time.monotonic() + run.order.timeout_s
        timer = asyncio.get_running_loop().call_later(
            run.order.timeout_s, run.kill, f"killed after {run.order.timeout_s:g} s"
        )
        log = None
        if run.order.log_group and has_credentials(run.order):
            stream = f"host/{self._settings.host}/{lease}"
            sender = CloudWatchSender(lambda: run.order, stream)
            log = self._nursery.start(send(run.output, sender, over), "run's log")
        is_new = False
        try:
            try:
                is_new = await self._begin(install, run, ends_s)
            except Exception as error:
                if not isinstance(error, OSError | AppError):
                    log_contained("the start of a run", error)
                run.kill(f"it cannot be started: {error}")
            await asyncio.shield(run.exited)
            with contained("the end of a run"):
                self._ended(lease, run)
            await asyncio.shield(run.gone)
        finally:
            timer.cancel()
            if not run.exited.done():
                run.kill("gpud ends")
            over.set()
        if is_new:
            self._nursery.start(self._evict(), "evict packages")
        if log is not None:
            await log

    def _over(self, lease: LeaseId, run: Run, _: object) -> None:
        """Nothing of a run uses the host but its files."""
        del self._runs[lease]
        self._packages.pop(lease, None)
        self._removing.add(run)
        run.removed.add_done_callback(lambda _: self._removing.discard(run))
        self._leases.wake()

    async def _begin(self, install: Install, run: Run, ends_s: float) -> bool:
        """Put the process into its sandbox and give it its work.

        True: its package is not unpacked yet. Raises OSError, AppError.
        """
        settings, order = self._settings, run.order
        run.exited.add_done_callback(lambda _: self._leases.wake())
        await self._leases.until(lambda: self._has_data(install, run), ends_s - time.monotonic())
        tenants = settings.packages / tenant_folder(install.tenant)
        async with self._storage:
            if install.lease not in self._runs:  # it is over: no package is its
                return False
            package = self._packages[install.lease] = tenants / order.package.sha256
            is_new = not _touched(package)
        shares = real_shares(install.shares)
        kinds = tuple(sorted({share.kind for share in shares})) or (DeviceKind.CPU,)
        async with run.entering:
            if run.exited.done():
                return is_new
            run.group = await asyncio.to_thread(self._sandboxes.group, run.pid)
            sandbox = await self._sandboxes.make(
                install.tenant, order.memory_mib << 20, kinds, run.group, settings.packages
            )
            aws = run.enter(sandbox)  # even of one that has ended: its end closes the sandbox
        if run.exited.done():
            return is_new
        native = worker_variables(shares) if DeviceKind.CUDA in kinds else {}
        data = self._data.folders(install)
        shared, of_container = _entered(run, install, sandbox.sandbox, shares, data)
        start = RunStart(
            parent=os.getpid(),
            policy=settings.policy,
            sandbox=sandbox.sandbox,
            reach=RunReach(
                files=settings.files,
                packages=tenants,
                gateway_port=settings.gateway_port,
                endpoint_ports=tuple(sorted(_ports(order.aws))),
                closed_ports=(_METADATA_PORT, *settings.closed_ports),
                network=order.network,
            ),
            package=order.package,
            aws=aws,
            runner={
                "event": order.event,
                "environment": {**order.variables, **native},
                "request": str(uuid.uuid4()),
                "function": order.function,
                "memory_mib": order.memory_mib,
                "ends_at_s": ends_s,
                **of_container,
            },
            data={name: str(path) for name, path in data.items()},
            container=shared,
        )
        if self._leases.table.find(install.lease) is None:  # it ended meanwhile
            run.kill()
        await asyncio.to_thread(run.begin, start)
        about = {"event": "run", "lease": install.lease, "function": order.function}
        logger.info("a function runs on this host", extra={**about, "job": order.job})
        return is_new

    def _has_data(self, install: Install, run: Run) -> bool:
        """True when the lease has all its declared data sets, or its run is over."""
        over = self._leases.table.find(install.lease) is None or run.exited.done()
        return over or not self._leases.table.data.lacked(install)

    def _ended(self, lease: LeaseId, run: Run) -> None:
        """End the lease of a run that ended before it."""
        run.output.drain()
        about = {"event": "run_ended", "lease": lease, "why": run.ending()}
        logger.info("a run ended", extra=about)
        if (entry := self._leases.table.find(lease)) is None:
            return
        reason = EndReason.SESSION_LOST if entry.nonce else EndReason.NOT_STARTED
        self._leases.end(lease, reason, self._detail(run))

    def _detail(self, run: Run) -> str:
        return run.ending(_DETAIL_CHARACTERS)

    async def _evict(self) -> None:
        async with self._storage:
            used = frozenset(self._packages.values())
            act = functools.partial(evict, self._settings.packages, spared=used)
            await asyncio.to_thread(act)


def _touched(package: Path) -> bool:
    """Note the use of a package; False when it is not here."""
    try:
        os.utime(package)
    except OSError:
        return False
    return True


def _ports(aws: Mapping[str, str]) -> set[int]:
    """The ports of the endpoints that an order names. Raises ValueError."""
    urls = (urlsplit(value) for name, value in aws.items() if name.startswith("AWS_ENDPOINT_URL"))
    return {url.port or _SCHEMES.get(url.scheme, 443) for url in urls}


def _entered(
    run: Run,
    install: Install,
    sandbox: Sandbox,
    shares: tuple[Share, ...],
    data: Mapping[str, Path],
) -> tuple[str, dict[str, int]]:
    """The folder of the run's container, if it has one, and the runner's part of it."""
    if run.container is None:
        return "", {}
    lease = ContainerLease(id=install.lease, sandbox=sandbox, shares=shares, data=data)
    return str(run.container.enter(lease)), {"container": run.container.descriptor}
