"""A host with more leases than one message holds comes back, and both sides agree on each of them.

The leases are made by the core and written to a journal; daemon, sockets and link are real.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, IdSource, JobId, LeaseId, SessionId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.access.secret import LeaseSecrets
from gpu_scheduler.daemon.endpoints.socket_endpoint import UNDER_WAY_MAX
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import Device, DeviceKind, LeaseLifetime, Request, Resident
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import host as host_words
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.changes import Entry
from tests.host_hello import host_hello
from tests.integration.ssgmd.conftest import BUDGET, Endpoints, serving
from tests.integration.test_ssgmd_process import Host
from tests.scheduler_events import event_of
from tests.unit.gpu_scheduler_daemon.journals import opened

DEVICES = 16
NOW: dict[str, Any] = {"at_s": 0.0, "wall_s": 1_700_000_000.0}


def devices() -> tuple[Device, ...]:
    return tuple(
        Device(id=DeviceId(f"h/d{i}"), index=i, kind=DeviceKind.CUDA, model="M", memory_mib=16384)
        for i in range(DEVICES)
    )


def history(leases: int) -> tuple[list[Entry], list[LeaseId]]:
    """A host on which so many sessions are open."""
    machine = SchedulerMachine(Budget(), IdSource("seed"))
    entries: list[Entry] = []

    def happened(event: on.Event) -> None:
        entries.extend(machine.handle(event).changes)

    happened(on.EpochBegan(**NOW))
    happened(
        event_of(
            host_ops.HostHello,
            host=HostId("h"),
            incarnation="i",
            gateway="h:1",
            epoch_seen=0,
            installed=(),
            devices=devices(),
            reply_to="1.1",
            **NOW,
        )
    )
    for number in range(leases):
        happened(
            event_of(
                ops.Reserve,
                attempt=f"a{number}",
                request=Request(memory_mib=1),
                wait=False,
                hold=LeaseLifetime.SESSION,
                lease_s=None,
                session=SessionId("s"),
                reply_to="1.1",
                **NOW,
            )
        )
    for lease in list(machine.state.leases):
        happened(
            event_of(
                host_ops.SessionChange,
                host=HostId("h"),
                lease=lease,
                state=host_words.SessionState.OPENED,
                nonce="n",
                reason=None,
                detail="",
                reply_to="1.1",
                **NOW,
            )
        )
    return entries, list(machine.state.leases)


def journalled(folder: Path, entries: list[Entry]) -> None:
    LeaseSecrets.open(folder)
    journal, _ = opened(folder)

    async def append() -> None:
        for start in range(0, len(entries), 500):
            await journal.append(entries[start : start + 500])

    asyncio.run(append())
    journal.close()


class Returning(Host):
    """A host that has some leases, and is what `HostLink` needs."""

    def __init__(self, held: list[LeaseId]) -> None:
        super().__init__("h", DEVICES, BUDGET)
        self.has: dict[LeaseId, None] = dict.fromkeys(held)
        self.states = 0
        self.changed = asyncio.Event()
        self.cut: set[LeaseId] = set()

    async def devices(self) -> tuple[Device, ...]:
        return devices()

    def installed(self) -> tuple[LeaseId, ...]:
        return tuple(self.has)

    def residents(self) -> Mapping[DeviceId, tuple[Resident, ...]]:
        return {}

    def warm_limits(self, limits: host_words.WarmLimits) -> None:
        self.limits = limits

    def keep_warm(self, floors: tuple[HostFloor, ...]) -> None:
        pass

    def full_state(self, installs: tuple[host_words.Install, ...], epoch: int) -> None:
        self.states += 1
        self.changed.set()
        said = {install.lease for install in installs}
        self.cut |= self.has.keys() - said
        self.has = dict.fromkeys(install.lease for install in installs)
        assert all(len(install.secret) == 64 for install in installs)

    def install(self, install: host_words.Install) -> None:
        self.has[install.lease] = None
        self.changed.set()

    def end(self, lease: LeaseId, fence: int, reason: Any) -> None:
        self.has.pop(lease, None)
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for changes of the installed leases until the condition holds."""
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    async def until_told_beyond(self, states: int) -> None:
        """Wait for one whole state more than so many."""
        await self.until(lambda: self.states > states)

    def returning(self, endpoints: Endpoints) -> HostLink:
        return HostLink(
            endpoints.daemon.socket,
            host="h",
            control=self,
            probe=self,
            gateway="h:1",
            budget=self.budget,
            incarnation="i",
        )


async def borrow(client: SchedulerClient, stop: asyncio.Event) -> None:
    """Leases that come and go while the state is on its way; the last one of each five stays."""
    number = 0
    while not stop.is_set():
        number += 1
        answer = await client.reserve(f"new-{number}", Request(memory_mib=1), wait=False)
        if answer.granted is not None and number % 5:
            await client.release(answer.granted.lease.id)
        await asyncio.sleep(0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("leases", "vanished", "extra"), [(3, 1, 1), (10_000, 1_000, 9_000)])
def test_a_host_comes_back_with_many_leases(
    tmp_path: Path, leases: int, vanished: int, extra: int
) -> None:
    """Of 10,000 live ones it lost some, and it has others that ended while it was away."""
    entries, live = history(leases)
    journalled(tmp_path, entries)
    unknown = [LeaseId(f"lease-that-ended-long-ago-{number}") for number in range(extra)]
    host = Returning([*live[vanished:], *unknown])

    async def story() -> None:
        async with (
            serving(tmp_path) as endpoints,
            SchedulerClient(endpoints.daemon.socket) as client,
        ):
            stop = asyncio.Event()
            async with host.returning(endpoints) as link, asyncio.timeout(300):
                await link.registered()
                borrowing = asyncio.ensure_future(borrow(client, stop))
                for _ in range(3):  # the whole state again, while others come and go
                    states = host.states
                    link._channel.say_hello_again()
                    await host.until_told_beyond(states)
                stop.set()
                await borrowing
                there = {lease.id for lease in await client.leases()}
                await host.until(lambda: host.has.keys() == there)  # the last pushes arrive
            assert there >= set(live[vanished:])
            assert not there & set(live[:vanished]), "the host no longer held them"
            assert host.cut >= set(unknown)
            assert not host.cut & set(live)

    asyncio.run(story())


def test_a_single_hello_of_before_is_still_answered_whole(tmp_path: Path) -> None:
    """A host that knows no pages gets the words it knows."""
    entries, live = history(2)
    journalled(tmp_path, entries)

    async def story() -> None:
        async with serving(tmp_path) as endpoints, endpoints.peer() as peer:
            hello: dict[str, Any] = host_hello(
                devices=[
                    {"id": f"h/d{i}", "index": i, "kind": "cuda", "model": "M", "memory_mib": 16384}
                    for i in range(DEVICES)
                ],
                installed=live,
            )
            welcome = (await peer.ask(op="hello", **hello))["ok"]
            assert set(welcome) == {"epoch", "run", "installs", "warm"}
            assert [install["lease"] for install in welcome["installs"]] == live

    asyncio.run(story())


def test_pages_without_an_incomplete_hello_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(tmp_path) as endpoints, endpoints.peer() as peer:
            hello: dict[str, Any] = host_hello(gateway=None, devices=[])
            assert "ok" in await peer.ask(op="hello", **hello)
            error = (await peer.ask(op="installed", leases=["x"], more=False))["error"]
            assert "no hello of this connection is incomplete" in error["message"]
            page = await peer.ask(op="installs", after=0, until=10)
            assert page["ok"] == {"installs": [], "more": False}
            peer.writer.write(json.dumps({"id": 1, "op": "hello", **hello, "more": True}).encode())
            names = [f"lease-{number}" for number in range(20_000)]
            for _ in range(6):
                line = {"id": 1, "op": "installed", "leases": names, "more": True}
                peer.writer.write(b"\n" + json.dumps(line).encode())
            error = (await peer.line(b""))["error"]
            assert "more than 100000 leases are installed on one host" in error["message"]

    asyncio.run(story())


def test_pages_of_a_hello_do_not_count_as_requests_under_way(tmp_path: Path) -> None:
    """The hello alone is answered, so the endpoint reads any number of its pages."""

    async def story() -> None:
        async with serving(tmp_path) as endpoints, endpoints.peer() as peer:
            hello: dict[str, Any] = host_hello(gateway=None, devices=[])
            lines = [{"id": 1, "op": "hello", **hello, "more": True}]
            lines += [
                {"id": 1, "op": "installed", "leases": [f"lease-{number}"], "more": True}
                for number in range(2 * UNDER_WAY_MAX)
            ]
            for line in lines:
                peer.writer.write(json.dumps(line).encode() + b"\n")
                await peer.writer.drain()
                await asyncio.sleep(0)
            last = json.dumps({"id": 1, "op": "installed", "leases": ["last"]}).encode()
            assert "ok" in await asyncio.wait_for(peer.line(last), 60)

    asyncio.run(story())


def test_records_are_answered_in_pages_that_fit(tmp_path: Path) -> None:
    """200 of the largest records are 2 MB; whoever asks gets as many as a message holds."""

    async def story() -> None:
        async with (
            serving(tmp_path) as endpoints,
            SchedulerClient(endpoints.daemon.socket) as client,
        ):
            block = {"note": "x" * 4000}
            for number in range(300):
                await client.ask(
                    ops.Finish(
                        holder=JobId(f"job-{number}"),
                        outcome="SUCCEEDED",
                        reason="OK",
                        block=block,
                    )
                )
                if number < 250:
                    op = ops.Attempt(
                        holder=JobId(f"open-{number}"),
                        n=1,
                        revision=0,
                        request=Request(),
                        handle="h" * 4000,
                        block=block,
                    )
                    await client.ask(op)
            found: list[str] = []
            while page := (
                await client.ask(ops.Records(after=JobId(found[-1]) if found else None))
            ).records:
                assert len(page) <= 200
                found += [record.holder for record in page]
            assert len(found) == len(set(found)) == 550
            for number in range(250):
                holder = JobId(f"open-{number}")
                record = (await client.ask(ops.RecordOf(holder=holder))).record
                assert record is not None
                await client.ask(ops.HandBack(holder=record.holder, revision=record.revision))
            assert 0 < len((await client.ask(ops.Orphans())).records) < 200

    asyncio.run(story())
