"""Two `ssgmd --standby` over one log as real processes, with hosts and clients, under faults.

Each daemon reaches the log, and is reached, through links that can be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
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
from gpu_scheduler.client.pushes import PushWord
from gpu_scheduler.model import LeaseLifetime, Request
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.protocol.host import Install, SessionState
from tests.integration.failover.links import Link
from tests.integration.failover.timeline import Gap, Moments, logged
from tests.integration.test_ssgmd_process import Borrowers, Host

DEVICES = 6
STANDING = 2  #: leases that live throughout
WAIT_S = 120.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Ssgmd:
    """One of the two daemons."""

    folder: Path
    log: str  #: its address of the log
    links: list[Link] = field(default_factory=list)
    listen: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    http: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    address: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")  #: for clients
    process: subprocess.Popen[bytes] | None = None

    @property
    def log_file(self) -> Path:
        return self.folder.with_suffix(".log")

    def start(self) -> None:
        line = [sys.executable, "-m", "gpu_scheduler.daemon", "--state", str(self.folder)]
        line += ["--log", self.log, "--standby", "--listen", self.listen, "--http", self.http]
        line += ["--advertise", self.address]
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

    daemons: list[Ssgmd]
    client: SchedulerClient
    host: RecordingHost
    link: HostLink
    borrowers: LastingBorrowers
    welcomes: Moments  #: of the client
    workers: list[asyncio.Task[None]] = field(default_factory=list)
    standing: dict[str, int] = field(default_factory=dict)  #: lease → fence
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
                self.link.session(lease.id, SessionState.OPENED, secrets.token_hex(4))
            self.standing[lease.id] = lease.fence

    async def round(self, fault: str) -> None:
        """Inject one fault into the leader; the other one must lead, and nothing be lost."""
        leader = await self.leader()
        other = self.other(leader)
        await self.standby_ready(other)
        cycles, epoch = self.borrowers.cycles, self.client.epoch
        started_s = time.time()
        undo = _FAULTS[fault](leader)
        async with asyncio.timeout(WAIT_S):
            while not self.borrowers.grants.has(epoch + 1):
                self.check_workers()
                await asyncio.sleep(0.01)
        self.gaps.append(self._gap(fault, other, started_s, epoch + 1))
        undo()
        await self.standby_ready(leader)  # it may have believed to lead for a beat
        assert await self.leader() is other
        async with asyncio.timeout(WAIT_S):
            while self.borrowers.cycles < cycles + 5:
                self.check_workers()
                await asyncio.sleep(0.01)
        await self.check()

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


def _kill(one: Ssgmd) -> Callable[[], None]:
    one.end()
    return one.start


def _stop(one: Ssgmd) -> Callable[[], None]:
    one.signal(signal.SIGSTOP)
    return lambda: one.signal(signal.SIGCONT)


def _terminate(one: Ssgmd) -> Callable[[], None]:
    one.signal(signal.SIGTERM)

    def again() -> None:
        assert one.process is not None
        assert one.process.wait(60) == 0
        one.start()

    return again


def _cut(one: Ssgmd) -> Callable[[], None]:
    for link in one.links:
        link.cut()

    def restore() -> None:
        for link in one.links:
            link.restore()

    return restore


def _cut_log(one: Ssgmd) -> Callable[[], None]:
    """Only the way to the log: clients still reach the old leader, which cannot write."""
    one.links[0].cut()
    return one.links[0].restore


_FAULTS: dict[str, Callable[[Ssgmd], Callable[[], None]]] = {
    "kill -9": _kill,
    "SIGSTOP": _stop,
    "cut": _cut,
    "cut of the log": _cut_log,
    "SIGTERM": _terminate,
}
FAULTS = tuple(_FAULTS)


@contextlib.contextmanager
def _ended(daemons: list[Ssgmd]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in daemons:
            with contextlib.suppress(OSError):
                one.signal(signal.SIGCONT)
            one.end()


@contextlib.asynccontextmanager
async def pair(folder: Path, logs: list[str], log_links: list[Link]) -> AsyncIterator[Pair]:
    """Two daemons, one host, borrowers and standing leases. `logs`: an address for each daemon."""
    (folder / "master.key").write_bytes(secrets.token_bytes(32))
    (folder / "master.key").chmod(0o600)
    daemons = [Ssgmd(folder / name, log) for name, log in zip("ab", logs, strict=True)]
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(_ended(daemons))
        for one, log_link in zip(daemons, log_links, strict=True):
            host, _, port = one.address.rpartition(":")
            to, _, to_port = one.listen.rpartition(":")
            client_link = Link((host, int(port)), (to, int(to_port)))
            one.links = [
                await stack.enter_async_context(log_link),
                await stack.enter_async_context(client_link),
            ]
            one.start()
        addresses = ",".join(one.address for one in daemons)
        budget = Budget()
        recording = RecordingHost("gpu-a", DEVICES, budget)
        link = await stack.enter_async_context(recording.link(addresses))
        welcomes = Moments()

        def pushed(word: PushWord) -> None:
            if isinstance(word, Connected):
                welcomes.note(word.epoch)

        client = await stack.enter_async_context(
            SchedulerClient(addresses, deadline_s=WAIT_S, on_push=pushed)
        )
        system = Pair(daemons, client, recording, link, LastingBorrowers(client), welcomes)
        await system.hold_leases()
        system.workers = [
            asyncio.ensure_future(system.borrowers.work(f"w{number}")) for number in range(3)
        ]
        try:
            yield system
        finally:
            system.borrowers.stop.set()
            for worker in system.workers:
                worker.cancel()
            await asyncio.gather(*system.workers, return_exceptions=True)
