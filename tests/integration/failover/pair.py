"""Two `ssgmd --standby` over one log as real processes, with hosts and clients, under faults.

One host is a real gpud, whose own log is checked; the other one records what it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corekit.budget import Budget
from gpu_scheduler.client import Connected, SchedulerClient
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.pushes import PushWord
from gpu_scheduler.daemon.access.keys import KeyEntry, KeyRole, add_key
from gpu_scheduler.model import LeaseLifetime, Request
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.protocol.host import Install, SessionChange, SessionState
from orchgpu.local.ports import fixed_address
from tests.integration.failover.gpud_host import (
    LASTING_MIB,
    GpudHost,
    LastingJob,
    gpud_host,
    granted,
    work_shortly,
)
from tests.integration.failover.networks import Network
from tests.integration.failover.timeline import Gap, Moments, logged
from tests.integration.test_ssgmd_process import Borrowers, Host

DEVICES = 6
STANDING = 2  #: leases that live throughout
WAIT_S = 120.0
FAULTS = ("kill -9", "SIGSTOP", "cut", "cut of the log", "SIGTERM")


@dataclass
class Ssgmd:
    """One of the two daemons."""

    folder: Path
    log: str  #: its address of the log
    listen: str = field(default_factory=fixed_address)
    http: str = field(default_factory=fixed_address)
    address: str = ""  #: for clients; "": that of `listen`
    prefix: tuple[str, ...] = ()  #: of its command
    keys: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log_file(self) -> Path:
        return self.folder.with_suffix(".log")

    def start(self) -> None:
        line = [*self.prefix, sys.executable, "-m", "gpu_scheduler.daemon"]
        line += ["--state", str(self.folder), "--log", self.log, "--standby"]
        line += ["--listen", self.listen, "--http", self.http]
        line += ["--advertise", self.address or self.listen]
        line += [] if self.keys is None else ["--keys", str(self.keys)]
        line += ["--master-key", str(self.folder.parent / "master.key")]
        with self.log_file.open("ab") as out:
            self.process = subprocess.Popen(line, stderr=out, env={**os.environ})

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def health(self) -> dict[str, Any]:
        """`/healthz`; empty while nothing answers."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/healthz", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, urllib.error.URLError):
            return {}


class RecordingHost(Host):
    """A host that notes every device which two leases have at once."""

    def __init__(self, name: str, devices: int, budget: Budget) -> None:
        super().__init__(name, devices, budget)
        self.mistakes: list[str] = []
        self.states = Moments()  #: full states

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        super().full_state(installs, epoch)
        self.states.note(epoch)
        self._check()

    def install(self, install: Install) -> None:
        super().install(install)
        self._check()

    def _check(self) -> None:
        holders: dict[str, str] = {}
        for install in self.held.values():
            for share in install.shares:
                other = holders.setdefault(share.device, install.lease)
                if other != install.lease:
                    self.mistakes.append(f"{share.device}: {other} and {install.lease}")


class LastingBorrowers(Borrowers):
    """Borrowers that note when a request of each epoch was first granted."""

    def __init__(self, client: SchedulerClient) -> None:
        super().__init__(client)
        self.grants = Moments()

    def granted_since(self, epoch: int) -> None:
        self.grants.note(epoch)


@dataclass
class Pair:
    """The system under test."""

    network: Network
    daemons: list[Ssgmd]
    client: SchedulerClient
    host: RecordingHost
    link: HostLink
    gpud: GpudHost
    borrowers: LastingBorrowers
    welcomes: Moments  #: of the client
    workers: list[asyncio.Task[None]] = field(default_factory=list)
    standing: dict[str, int] = field(default_factory=dict)  #: lease → fence
    lasting: LastingJob | None = None
    gaps: list[Gap] = field(default_factory=list)

    async def leader(self) -> Ssgmd:
        found: Ssgmd = await until(self._leader, "one leads")
        return found

    async def _leader(self) -> Ssgmd | None:
        for one in self.daemons:
            if (await asyncio.to_thread(one.health)).get("role") == "leader":
                return one
        return None

    def other(self, one: Ssgmd) -> Ssgmd:
        return self.daemons[1 - self.daemons.index(one)]

    async def standby_ready(self, one: Ssgmd) -> None:
        """Wait until this daemon follows the log."""

        async def follows() -> bool:
            health = await asyncio.to_thread(one.health)
            return health.get("role") == "standby" and health["lag_s"] < 1.0 and health["epoch"] > 0

        await until(follows, "it stands by")

    async def hold_leases(self) -> None:
        """Take leases that must live through everything: with a session, and with a deadline."""
        await self.link.registered()
        for number in range(STANDING):
            hold = LeaseLifetime.DEADLINE if number % 2 else LeaseLifetime.SESSION
            answer = await self.client.reserve(
                f"standing-{number}",
                Request(memory_mib=1024),
                wait=True,
                hold=hold,
                lease_s=36_000.0 if number % 2 else None,
            )
            assert answer.granted is not None
            lease = answer.granted.lease
            await self.client.renew(lease.id)
            if hold is LeaseLifetime.SESSION:
                opened, nonce = SessionState.OPENED, secrets.token_hex(4)
                self.link.session(SessionChange(lease=lease.id, state=opened, nonce=nonce))
            self.standing[lease.id] = lease.fence

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Requesters that take and give back without a pause, and jobs on the real host."""
        lease = await granted(self.client, "lasting", LASTING_MIB)
        self.lasting = await asyncio.to_thread(LastingJob, lease)
        stop = self.borrowers.stop
        tasks = [self.borrowers.work(f"w{number}") for number in range(3)]
        tasks += [work_shortly(self.gpud, self.client, stop)]
        self.workers = [asyncio.ensure_future(task) for task in tasks]
        try:
            yield
        finally:
            stop.set()
            *borrowers, jobs = self.workers
            for worker in borrowers:
                worker.cancel()
            await asyncio.gather(*borrowers, jobs, return_exceptions=True)
            await asyncio.to_thread(self.lasting.close)

    async def round(self, fault: str) -> None:
        """Inject one fault into the leader; the other one must lead, and nothing be lost."""
        leader = await self.leader()
        other = self.other(leader)
        await self.standby_ready(other)
        cycles, jobs, epoch = self.borrowers.cycles, self.gpud.jobs, self.client.epoch
        started_s = time.time()
        self._inject(fault, leader)
        async with asyncio.timeout(WAIT_S):
            while not self.borrowers.grants.has(epoch + 1):
                self.check_workers()
                await asyncio.sleep(0.01)
        self.gaps.append(self._gap(fault, other, started_s, epoch + 1))
        await self._undo(fault, leader)
        await self.standby_ready(leader)  # it may have believed to lead for a beat
        assert await self.leader() is other
        async with asyncio.timeout(WAIT_S):
            while self.borrowers.cycles < cycles + 5 or self.gpud.jobs < jobs + 2:
                self.check_workers()
                await asyncio.sleep(0.01)
        await self.check()

    def _inject(self, fault: str, one: Ssgmd) -> None:
        match fault:
            case "kill -9":
                one.end()
            case "SIGSTOP":
                one.signal(signal.SIGSTOP)
            case "SIGTERM":
                one.signal(signal.SIGTERM)
            case _:  # with a cut of the log, clients still reach the old leader, which cannot write
                self.network.cut(one.name, log_only=fault == "cut of the log")

    async def _undo(self, fault: str, one: Ssgmd) -> None:
        match fault:
            case "kill -9":
                one.start()
            case "SIGSTOP":
                one.signal(signal.SIGCONT)
            case "SIGTERM":
                assert one.process is not None
                assert await asyncio.to_thread(one.process.wait, 60) == 0
                one.start()
            case _:
                self.network.restore(one.name)

    def _gap(self, fault: str, other: Ssgmd, started_s: float, epoch: int) -> Gap:
        taking_over_s = logged(other.log_file, "taking_over", started_s)
        return Gap(
            fault=fault,
            taking_over_s=taking_over_s - started_s,
            serving_s=logged(other.log_file, "serving", taking_over_s) - started_s,
            host_s=self.host.states.first(epoch) - started_s,
            client_s=self.welcomes.first(epoch) - started_s,
            granted_s=self.borrowers.grants.first(epoch) - started_s,
        )

    def check_workers(self) -> None:
        for worker in self.workers:
            if worker.done():
                worker.result()

    async def check(self) -> None:
        """No device was given twice, and no lease is lost."""
        assert not self.borrowers.mistakes
        assert not self.host.mistakes
        live = {lease.id: lease.fence for lease in await self.client.leases()}
        assert self.standing.items() <= live.items()
        assert self.lasting is not None
        assert self.lasting.id in live
        await asyncio.to_thread(self.lasting.work)
        self.gpud.check()
        async with asyncio.timeout(WAIT_S):
            while not self.standing.keys() <= self.host.held.keys():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert self.host.epochs == sorted(self.host.epochs)


async def until(holds: Callable[[], Any], what: str) -> Any:
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        if found := await holds():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {WAIT_S:g} s: {what}")


@contextlib.contextmanager
def _ended(daemons: list[Ssgmd]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in daemons:
            with contextlib.suppress(OSError):
                one.signal(signal.SIGCONT)
            one.end()


def _daemons(folder: Path, network: Network, log: str, keys: Path) -> list[Ssgmd]:
    (folder / "master.key").write_bytes(secrets.token_bytes(32))
    (folder / "master.key").chmod(0o600)
    return [
        Ssgmd(
            folder / place.name,
            log.format("{}:{}".format(*place.log)),
            place.listen,
            place.http,
            place.address,
            place.prefix,
            keys,
        )
        for place in network.places
    ]


@contextlib.asynccontextmanager
async def pair(folder: Path, network: Network, log: str) -> AsyncIterator[Pair]:
    """Two daemons, two hosts, borrowers, jobs and standing leases.

    `log`: the address of the log, with `{}` in place of its host and port.
    """
    keys = folder / "keys.json"
    host_key, key = (
        add_key(keys, KeyEntry(name=role.value, role=role, sha256="0" * 64))
        for role in (KeyRole.HOST, KeyRole.OPERATOR)
    )
    daemons = _daemons(folder, network, log, keys)
    welcomes = Moments()

    def pushed(word: PushWord) -> None:
        if isinstance(word, Connected):
            welcomes.note(word.epoch)

    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(_ended(daemons))
        for one in daemons:
            one.start()
        schedulers = ",".join(one.address for one in daemons)
        recording = RecordingHost("gpu-a", DEVICES, Budget())
        link = HostLink(
            schedulers,
            host=recording.name,
            control=recording,
            probe=recording,
            gateway="127.0.0.1:1",
            budget=Budget(),
            access=Access(key=host_key),
        )
        await stack.enter_async_context(link)
        gpud = await stack.enter_async_context(gpud_host(folder, schedulers, host_key))
        client = await stack.enter_async_context(
            SchedulerClient(schedulers, deadline_s=WAIT_S, on_push=pushed, access=Access(key=key))
        )
        borrowers = LastingBorrowers(client)
        system = Pair(network, daemons, client, recording, link, gpud, borrowers, welcomes)
        await system.hold_leases()
        async with system.at_work():
            yield system
