"""The runs of this host's leases; lives in the event loop.

A lease has one run at most, which ends with the lease, and the lease with it. A device that is a
card stays the lease's until its run is over: the user's code uses it itself, and only the end of
its processes frees it.

The process of a warm order may outlive its lease: parked among the warm workers (`host/warm`), for
the next lease that orders the same program.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
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
from remote_gpu.host.runs.called import CallSocket
from remote_gpu.host.runs.launch import RunStart
from remote_gpu.host.runs.output import CloudWatchSender, send
from remote_gpu.host.runs.private import has_credentials
from remote_gpu.host.runs.run import Run
from remote_gpu.host.warm.table import is_card
from remote_gpu.host.warm.workers import WarmWorkers
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
        warm: WarmWorkers,
        budget: Budget,
        nursery: Nursery,
    ) -> None:
        self._settings = settings
        self._leases = leases
        self._sandboxes = sandboxes
        self._data = data
        self._warm = warm
        self._budget = budget
        self._nursery = nursery
        self._runs: dict[LeaseId, Run] = {}
        #: All of them, oldest first, the parked ones too, until their files are removed.
        self._kept: dict[Run, None] = {}
        self._logs: set[asyncio.Task[None]] = set()  # that are sent
        self._storage = asyncio.Lock()  # no package is used while others are evicted

    def order(self, install: Install, order: RunOrder) -> bool:
        """Begin the run of a lease; True: this call did. A repetition renews its credentials.

        Raises Refused: this host runs no functions, or none with this order.
        """
        if (run := self._runs.get(install.lease)) is not None:
            run.renew(order)
            return False
        self._check(order)
        begins = self._continue
        if (run := self._parked(install, order)) is None:
            run, begins = self._new(install, order), self._begin
        self._runs[install.lease] = run
        run.gone.add_done_callback(functools.partial(self._over, install.lease, run))
        follows = self._follow(install, run, functools.partial(begins, install, run))
        self._nursery.start(follows, "run")
        return True

    def _new(self, install: Install, order: RunOrder) -> Run:
        """Start a process. Raises Refused."""
        self._check_memory(order)
        namespaced = self._settings.policy.pid_namespace
        try:
            run = Run(order, self._nursery, self._container(order), namespaced=namespaced)
        except (OSError, AppError) as error:
            raise Refused(Refusal.NOT_READY, f"no process for the run: {error}") from None
        run.shares, run.data_sets = real_shares(install.shares), install.data_sets
        self._kept[run] = None
        run.removed.add_done_callback(lambda _: self._kept.pop(run))
        return run

    def _parked(self, install: Install, order: RunOrder) -> Run | None:
        """The parked process of this lease, if it is of the order's program; any other ends."""
        found = self._warm.program(install.lease)
        if not isinstance(found, Run):
            return None
        same = order.warm and order.program == found.order.program
        try:
            if same and found.data_sets == install.data_sets and not found.exited.done():
                found.take(order)
                return found
        except OSError:
            logger.warning("a parked program cannot be continued", exc_info=True)
        found.kill("its lease runs another program")
        return None

    def _container(self, order: RunOrder) -> RunContainer | None:
        host = self._settings.containers
        return RunContainer(host, order, self._nursery) if order.image and host else None

    def called(self, lease: LeaseId) -> CallSocket:
        """The calls of a lease's run. Raises Refused(NOT_READY) for one that takes none."""
        run = self._runs.get(lease)
        if run is None or run.calls is None or run.exited.done():
            raise Refused(Refusal.NOT_READY, f"no run of lease {lease} takes calls here")
        return run.calls

    def keeps_device(self, lease: LeaseId) -> bool:
        """True for a lease whose run is not over, with a card or with a process that may stay:
        giving the device back has no effect."""
        entry, run = self._leases.table.find(lease), self._runs.get(lease)
        if entry is None or run is None:
            return False
        return run.order.warm or any(is_card(share) for share in entry.install.shares)

    def stays(self, lease: LeaseId) -> asyncio.Future[str] | None:
        """Done once the run of an ended lease is parked, with its id, or gone; None: it is to
        go."""
        run = self._runs.get(lease)
        return run.left if run is not None and run.stays else None

    def end(self, step: LeaseStep) -> None:
        """The lease is over: its run ends too, at once unless the runner ended the lease itself."""
        if (run := self._runs.get(step.lease)) is None:
            return
        why = f"its lease ended as {step.reason}"
        if run.stays:
            return  # the end is reported again
        if step.reason in (EndReason.DONE, EndReason.RELEASED):
            run.stays = step.leaves_worker and self.may_park(step.lease)
            asyncio.get_running_loop().call_later(_LEAVE_S, self._cut, step.lease, run, why)
        else:
            run.kill(why)

    def _cut(self, lease: LeaseId, run: Run, why: str) -> None:
        # else it is gone, or parked, or has another lease
        if self._runs.get(lease) is run and not run.parking:
            run.kill(why)

    def may_park(self, lease: LeaseId) -> bool:
        """Whether the process of a lease may stay: only what is frozen uses no processor while it
        has no lease, and neither what it launched on a card nor its container is frozen with it."""
        if (run := self._runs.get(lease)) is None or run.link is None or not self._warm.allowed:
            return False
        if run.container is not None:
            return False
        if any(share.kind is not DeviceKind.CPU for share in run.shares):
            return False
        return run.group is not None or not self._settings.policy.seccomp

    def ending(self, lease: LeaseId) -> LeavingRun | None:
        """The run of a lease that is over: its devices are free once it has left."""
        if self._leases.table.find(lease) is not None or (run := self._runs.get(lease)) is None:
            return None
        return LeavingRun(pid=run.pid, gone=run.left)

    async def explained(self, lease: LeaseId, detail: str) -> str:
        """The reason of a lost session: the end of its run, if that ends too."""
        if (run := self._runs.get(lease)) is None:
            return detail
        await asyncio.wait({run.exited}, timeout=_LOST_S)
        return self._detail(run) if run.exited.done() else detail

    async def close(self) -> None:
        """Kill all runs, the parked ones too, and wait for the end of them, their files and logs,
        or `worker_cut_s`.

        The files that are left then are removed by the next gpud.
        """
        for run in self._kept:
            run.kill("the host ends")
        if ends := {*(run.removed for run in self._kept), *self._logs}:
            await asyncio.wait(ends, timeout=self._budget.worker_cut_s)

    def _check(self, order: RunOrder) -> None:
        if self._settings.refused:
            text = f"this host runs no functions: {self._settings.refused}"
            raise Refused(Refusal.NOT_READY, text)
        if order.image and self._settings.containers is None:
            text = f"this host runs no images: {self._settings.no_containers}"
            raise Refused(Refusal.NOT_READY, text)
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
        """Book the memory of an order beside that of the runs which are not gone yet; parked ones
        that no lease has end for it, the oldest first."""
        limit_mib = self._settings.memory_mib
        runs = [run for run in self._kept if not run.gone.done()]
        booked_mib = sum(run.order.memory_mib for run in runs)
        if limit_mib is None or booked_mib + order.memory_mib <= limit_mib:
            return
        idle = [run for run in runs if self._warm.id_of(run) or (run.parked and run.why_killed)]
        excess_mib = booked_mib + order.memory_mib - limit_mib
        if excess_mib > sum(run.order.memory_mib for run in idle):
            has = f"this host has {limit_mib} MiB for runs, of which {booked_mib} MiB are booked"
            raise Refused(Refusal.NOT_READY, f"{has}: the run needs {order.memory_mib} MiB")
        why = "another run needs its memory"
        for run in sorted(idle, key=lambda run: not run.why_killed):
            if excess_mib > 0:
                names = (self._warm.id_of(run),)
                self._leases.apply(self._leases.table.evict_warm(names, why))
                excess_mib -= run.order.memory_mib

    async def _follow(
        self, install: Install, run: Run, begins: Callable[[], Awaitable[bool]]
    ) -> None:
        """Give the run its work, and wait until it has left its lease."""
        lease = install.lease
        over, run.ends_s = asyncio.Event(), time.monotonic() + run.order.timeout_s
        timer = asyncio.get_running_loop().call_later(
            run.order.timeout_s, run.kill, f"killed after {run.order.timeout_s:g} s"
        )
        log = None
        if run.order.log_group and has_credentials(run.order):
            stream = f"host/{self._settings.host}/{lease}"
            sender = CloudWatchSender(functools.partial(_newest, run, run.order), stream)
            log = self._nursery.start(send(run.output, sender, over), "run's log")
            self._logs.add(log)
            log.add_done_callback(self._logs.discard)
        is_new = is_parked = False
        try:
            try:
                is_new = await begins()
            except Exception as error:
                if not isinstance(error, OSError | AppError):
                    log_contained("the start of a run", error)
                run.kill(f"it cannot be started: {error}")
            is_parked = await self._parks(install, run)
            if not is_parked:
                await asyncio.shield(run.exited)
                with contained("the end of a run"):
                    self._ended(lease, run)
                await asyncio.shield(run.gone)
        finally:
            timer.cancel()
            if not is_parked and not run.exited.done():
                run.kill("gpud ends")
            over.set()
        if is_new:
            self._nursery.start(self._evict(), "evict packages")
        if log is not None:
            await log

    async def _parks(self, install: Install, run: Run) -> bool:
        """Wait for the end of the run's work; True: its process is parked, without the lease."""
        if run.link is None:
            return False
        await asyncio.wait({run.exited, run.link.idle}, return_when=asyncio.FIRST_COMPLETED)
        if run.exited.done():
            return False
        table, lease = self._leases.table, install.lease
        await self._leases.until(lambda: table.find(lease) is None, _LOST_S)  # it is on its way
        try:
            if run.stays and not run.why_killed:
                await run.park()
                if name := await self._warm.park(install, run, run.link.loading_s):
                    self._runs.pop(lease, None)
                    run.leave(name)
                    self._leases.wake()
                    return True
        except Exception as error:
            if not isinstance(error, OSError):
                log_contained("the parking of a run", error)
            about = {"event": "not_parked", "lease": lease, "why": str(error)}
            logger.warning("a program cannot be parked", extra=about)
            run.kill("it cannot be parked")
        run.link.close()
        return False

    def _over(self, lease: LeaseId, run: Run, _: object) -> None:
        """Nothing of a run uses the host but its files."""
        if self._runs.get(lease) is run:  # else it was parked since
            del self._runs[lease]
        self._leases.wake()

    async def _begin(self, install: Install, run: Run) -> bool:
        """Put the process into its sandbox and give it its work.

        True: its package is not unpacked yet. Raises OSError, AppError.
        """
        settings, order = self._settings, run.order
        await self._await_data(install, run)
        tenants = settings.packages / tenant_folder(install.tenant)
        async with self._storage:
            if install.lease not in self._runs:  # it is over: no package is its
                return False
            run.package = tenants / order.package.sha256
            is_new = not _touched(run.package)
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
                **_work(run),
                "environment": {**order.variables, **native},
                "function": order.function,
                "memory_mib": order.memory_mib,
                **of_container,
                **({} if run.link is None else {"warm": run.link.descriptor}),
                **({} if run.calls is None else {"calls": run.calls.descriptor}),
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

    async def _continue(self, install: Install, run: Run) -> bool:
        """Give a parked process its next order. Raises OSError."""
        await self._await_data(install, run)
        if run.package is not None:
            _touched(run.package)
        if self._leases.table.find(install.lease) is None:  # it ended meanwhile
            run.kill()
        if run.exited.done():
            return False
        await run.resume(_work(run))
        about = {"event": "run", "lease": install.lease, "function": run.order.function}
        logger.info("a parked program serves another job", extra={**about, "pid": run.pid})
        return False

    async def _await_data(self, install: Install, run: Run) -> None:
        run.exited.add_done_callback(lambda _: self._leases.wake())
        rest_s = run.ends_s - time.monotonic()
        await self._leases.until(lambda: self._has_data(install, run), rest_s)

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
            live = [run for run in self._kept if not run.gone.done()]
            used = frozenset(run.package for run in live if run.package is not None)
            act = functools.partial(evict, self._settings.packages, spared=used)
            await asyncio.to_thread(act)


@dataclass(slots=True, kw_only=True)
class LeavingRun:
    """The run of a lease that is over."""

    pid: int
    gone: asyncio.Future[Any]  #: it has left the lease


def _work(run: Run) -> dict[str, object]:
    """The part of a runner's order that is of one job."""
    return {"event": run.order.event, "request": str(uuid.uuid4()), "ends_at_s": run.ends_s}


def _newest(run: Run, order: RunOrder) -> RunOrder:
    """The order of a job, with the newest credentials that its run got for it."""
    return run.order if run.order.job == order.job else order


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
