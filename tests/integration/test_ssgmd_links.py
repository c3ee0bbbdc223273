"""The two ends of a connection against a peer that misbehaves in a scripted way."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from corekit.aio.clock import SystemClock
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId, HostId, JobId, LeaseId
from gpu_scheduler.client import Connected, Disconnected, SchedulerClient
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    Door,
    EndReason,
    LeaseLifetime,
    LeaseState,
    Resident,
    Usage,
)
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.host import Install, SessionChange, SessionState, WarmLimits
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from orchgpu.adapters.scheduler import SchedulerAdapter
from orchgpu.ports import CloudPorts
from orchgpu.replica.app import report_account
from simulator.faults.memory_cloud import MemoryStarter

BUDGET = Budget().scaled(0.02)

Script = Callable[["Peer", dict[str, Any]], Any]


class Peer:
    """A scheduler of the test's own making: a script answers every message."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.heard: list[dict[str, Any]] = []
        self.connections = 0
        self.writer: asyncio.StreamWriter | None = None
        self.address = ""

    def send(self, **value: Any) -> None:
        assert self.writer is not None
        self.writer.write(json.dumps(value).encode() + b"\n")

    def drop(self) -> None:
        assert self.writer is not None
        self.writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.connections += 1
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                message = json.loads(line)
                self.heard.append(message)
                self.script(self, message)
        writer.close()

    def ops(self) -> list[str]:
        return [message["op"] for message in self.heard]


@contextlib.asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Peer]:
    peer = Peer(script)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.address = "{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield peer
    finally:
        server.close()
        if peer.writer is not None:
            peer.writer.close()
        await asyncio.sleep(0)


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what it waits for happens elsewhere
            await asyncio.sleep(0.005)


def friendly(peer: Peer, message: dict[str, Any]) -> None:
    """Welcomes and says yes."""
    welcome = {"epoch": 3, "now_s": 0.0} if message.get("role") == "requester" else None
    if message["op"] == "hello":
        peer.send(id=message["id"], ok=welcome or {"epoch": 3, "installs": []})
    else:
        peer.send(id=message["id"], ok={})


# --- the requester's end


@pytest.mark.asyncio
async def test_what_was_in_flight_is_sent_again_in_its_order() -> None:
    def script(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] == "hello" or peer.connections > 1:
            friendly(peer, message)
        elif message["op"] == "renew" and message["lease"] == "c":
            peer.drop()

    words: list[Any] = []
    async with (
        serving(script) as peer,
        SchedulerClient(peer.address, budget=BUDGET, on_push=words.append, session="s-1") as client,
    ):
        await client.wait_connected(5)
        await asyncio.gather(*(client.renew(lease) for lease in "abc"))
        again = [m["lease"] for m in peer.heard if m["op"] == "renew"]
        assert again == ["a", "b", "c", "a", "b", "c"]
        hellos = [m for m in peer.heard if m["op"] == "hello"]
        assert [m["session"] for m in hellos] == ["s-1", "s-1"]
    assert [type(word) for word in words] == [Connected, Disconnected, Connected]


@pytest.mark.asyncio
async def test_no_answer_is_a_timeout_because_it_may_have_been_done() -> None:
    def script(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] in ("hello", "beat"):
            friendly(peer, message)

    async with (
        serving(script) as peer,
        SchedulerClient(peer.address, budget=BUDGET, deadline_s=0.2) as client,
    ):
        await client.wait_connected(5)
        with pytest.raises(AppError, match="did not answer 'renew'") as caught:
            await client.renew("a")
        assert caught.value.code is ErrorCode.TIMEOUT


@pytest.mark.asyncio
async def test_an_orchestrator_reports_the_limit_of_its_account_with_every_beat() -> None:
    model, clock = Cloud(bodies=MemoryBodies()), SystemClock()
    functions = MemoryStarter(model, clock)
    unused: Any = None
    cloud = CloudPorts(
        queue=unused, store=unused, functions=functions, state_bucket="s", account="1/us-east-1"
    )

    def beats() -> list[dict[str, Any]]:
        return [one for one in peer.heard if one.get("account") == "1/us-east-1"]

    async with serving(friendly) as peer, SchedulerClient(peer.address, budget=BUDGET) as client:
        await client.wait_connected(5)
        reporting = asyncio.ensure_future(
            report_account(cloud, SchedulerAdapter(client, asyncio.Queue()))
        )
        await until(lambda: len(beats()) > 1)
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
    assert beats()[-1]["ahead_max"] == 250, "a quarter of the usual limit"


@pytest.mark.asyncio
async def test_a_silent_scheduler_is_left_for_a_new_connection() -> None:
    def script(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] == "hello" or peer.connections > 1:
            friendly(peer, message)  # the first connection answers nothing else: stopped

    async with serving(script) as peer, SchedulerClient(peer.address, budget=BUDGET) as client:
        await client.wait_connected(5)
        await until(lambda: peer.connections == 2)
        await client.renew("a")


@pytest.mark.asyncio
async def test_a_refused_hello_reaches_whoever_waits() -> None:
    def script(peer: Peer, message: dict[str, Any]) -> None:
        peer.send(id=message["id"], error={"code": "invalid", "message": "version 1? no"})

    async with serving(script) as peer, SchedulerClient(peer.address, budget=BUDGET) as client:
        with pytest.raises(AppError, match=r"version 1\? no"):
            await client.leases()


@pytest.mark.asyncio
async def test_garbage_from_the_scheduler_is_a_lost_connection_and_nothing_worse() -> None:
    def script(peer: Peer, message: dict[str, Any]) -> None:
        friendly(peer, message)
        if message["op"] == "hello" and peer.connections == 1:
            assert peer.writer is not None
            peer.send(push="granted", holder="j", nonsense=1)
            peer.send(push="from_the_future")
            peer.send(id=999, ok={})
            peer.writer.write(b"\xff\xfe no json\n")

    words: list[Any] = []
    async with (
        serving(script) as peer,
        SchedulerClient(peer.address, budget=BUDGET, on_push=words.append) as client,
    ):
        await client.renew("a")
        await until(lambda: len(words) == 3)
        assert [type(word) for word in words] == [Connected, Disconnected, Connected]


@pytest.mark.asyncio
async def test_a_conflict_carries_the_record_as_a_value() -> None:
    record = {
        "holder": "j",
        "revision": 4,
        "owner": "other",
        "attempt": 1,
        "step": "WAITING",
        "waiting_since_s": None,
        "handle": "",
    }

    def script(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] == "adopt":
            error = {"code": "conflict", "message": "moved on", "details": {"record": record}}
            peer.send(id=message["id"], error=error)
        else:
            friendly(peer, message)

    async with serving(script) as peer, SchedulerClient(peer.address, budget=BUDGET) as client:
        with pytest.raises(AppError) as caught:
            await client.ask(ops.Adopt(holder=JobId("j"), revision=3))
        assert caught.value.code is ErrorCode.CONFLICT
        assert caught.value.details["record"].revision == 4


# --- the host's end


class Host:
    """HostControl and Probe that remember."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.held: tuple[LeaseId, ...] = ()

    async def devices(self) -> tuple[Device, ...]:
        return (
            Device(id=DeviceId("h/0"), index=0, kind=DeviceKind.CPU, model="M", memory_mib=1000),
        )

    async def usage(self) -> tuple[Usage, ...]:
        return ()

    async def close(self) -> None:
        pass

    def installed(self) -> tuple[LeaseId, ...]:
        return self.held

    def seen(self, devices: tuple[Device, ...]) -> None:
        pass

    def leased(self) -> tuple[DeviceId, ...]:
        return ()

    def faults(self) -> dict[DeviceId, Any]:
        return {}

    def residents(self) -> Mapping[DeviceId, tuple[Resident, ...]]:
        return {}

    def warm_limits(self, limits: WarmLimits) -> None:
        self.limits = limits

    def keep_warm(self, floors: tuple[HostFloor, ...]) -> None:
        pass

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        self.calls.append(("full", epoch, [install.lease for install in installs]))

    def install(self, install: Install) -> None:
        self.calls.append(("install", install.lease))

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        self.calls.append(("end", lease, reason))

    def staged(self, lease: LeaseId, connect_by_s: float) -> None:
        self.calls.append(("staged", lease, connect_by_s))

    def preempt(self, lease: LeaseId, grace_s: float) -> None:
        self.calls.append(("preempt", lease, grace_s))

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None:
        self.calls.append(("resize", lease, compute_limit_pct))

    def link_changed(self, connected: bool) -> None:
        self.calls.append(("link", connected))

    def link(self, address: str, budget: Budget = BUDGET) -> HostLink:
        return HostLink(
            address,
            host="h",
            control=self,
            probe=self,
            gateway="a:1",
            budget=budget,
            incarnation="i1",
        )


def install(lease: str, fence: int, memory_mib: int = 100, device: str = "h/0") -> dict[str, Any]:
    share = {
        "host": HostId("h"),
        "device": device,
        "index": 0,
        "kind": "cpu",
        "model": "M",
        "memory_mib": memory_mib,
        "compute_guarantee_pct": 0,
        "compute_limit_pct": 100,
        "exclusive": False,
    }
    return {
        "lease": lease,
        "fence": fence,
        "secret": "00" * 32,
        "state": LeaseState.RESERVED,
        "shares": [share],
        "tenant": "t",
        "hold": LeaseLifetime.SESSION,
        "door": Door.GATEWAY,
        "cap_s": None,
        "connect_by_s": None,
    }


@pytest.mark.asyncio
async def test_pushes_reach_the_host_in_their_order() -> None:
    host = Host()
    async with serving(friendly) as peer, host.link(peer.address) as link:
        await link.registered()
        peer.send(push="install", install=install("l1", 5))
        peer.send(push="staged", lease="l1", connect_by_s=9.5)
        peer.send(push="preempt", lease="l1", grace_s=2.5)
        peer.send(push="end", lease="l1", fence=5, reason="RELEASED")
        peer.send(push="install", install=install("l2", 6))
        await until(lambda: ("install", "l2") in host.calls)
        assert [call for call in host.calls if call[0] not in ("full", "link")] == [
            ("install", "l1"),
            ("staged", "l1", 9.5),
            ("preempt", "l1", 2.5),
            ("end", "l1", EndReason.RELEASED),
            ("install", "l2"),
        ]


@pytest.mark.asyncio
async def test_a_lower_epoch_is_refused() -> None:
    def script(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] == "hello":
            epoch = 7 if peer.connections == 1 else 6
            peer.send(id=message["id"], ok={"epoch": epoch, "installs": []})
        else:
            friendly(peer, message)

    host = Host()
    async with serving(script) as peer, host.link(peer.address) as link:
        await link.registered()
        peer.drop()
        await until(lambda: peer.connections >= 3)
        assert {call[1] for call in host.calls if call[0] == "full"} == {7}
        assert link.epoch_seen == 7
        assert peer.heard[-1]["epoch_seen"] == 7
        assert not link.connected


@pytest.mark.asyncio
async def test_the_same_epoch_of_another_run_is_refused() -> None:
    def script(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] == "hello":
            run = "first" if peer.connections == 1 else "copy"
            peer.send(id=message["id"], ok={"epoch": 7, "installs": [], "run": run})
        else:
            friendly(peer, message)

    host = Host()
    async with serving(script) as peer, host.link(peer.address) as link:
        await link.registered()
        peer.drop()
        await until(lambda: peer.connections >= 3)
        assert peer.heard[-1]["run_seen"] == link.run_seen == "first"
        assert not link.connected


@pytest.mark.asyncio
async def test_an_install_out_of_order_brings_the_full_state() -> None:
    host = Host()
    async with serving(friendly) as peer, host.link(peer.address) as link:
        await link.registered()
        peer.send(push="install", install=install("l1", 9))
        await until(lambda: ("install", "l1") in host.calls)
        hellos = peer.ops().count("hello")
        peer.send(push="install", install=install("l0", 9))
        await until(lambda: peer.ops().count("hello") > hellos)
        assert ("install", "l0") not in host.calls


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "share", [{"memory_mib": 1001}, {"device": "elsewhere/0"}], ids=["too large", "not here"]
)
async def test_an_install_that_cannot_be_kept_is_refused_and_says_so(share: dict[str, Any]) -> None:
    host = Host()
    async with serving(friendly) as peer, host.link(peer.address) as link:
        await link.registered()
        peer.send(push="install", install=install("l1", 5, **share))
        await until(lambda: "session" in peer.ops())
        told = next(message for message in peer.heard if message["op"] == "session")
        assert (told["state"], told["reason"]) == ("closed", "DEVICE_BAD")
        assert ("install", "l1") not in host.calls


@pytest.mark.asyncio
async def test_a_session_that_closed_is_told_after_a_disconnect_and_not_lost_before() -> None:
    """The hello still names it, so that its own reason arrives instead of SESSION_LOST."""

    def script(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] == "session" and peer.connections == 1:
            peer.drop()
        elif message["op"] == "hello":
            kept = [install("l1", 5)] if peer.connections == 2 else []
            peer.send(id=message["id"], ok={"epoch": 1, "installs": kept})
        else:
            friendly(peer, message)

    host = Host()
    async with serving(script) as peer, host.link(peer.address) as link:
        await link.registered()
        closed = SessionChange(lease=LeaseId("l1"), state=SessionState.CLOSED, nonce="n1")
        link.session(closed)
        await until(lambda: peer.connections == 2 and peer.ops().count("session") == 2)
        second = [message for message in peer.heard if message["op"] == "hello"][1]
        assert second["installed"] == ["l1"]
        assert all("l1" not in call[2] for call in host.calls if call[0] == "full")
        await until(lambda: peer.heard[-1].get("installed") == [] or peer.connections > 2)


@pytest.mark.asyncio
async def test_reports_and_the_full_state_come_again_and_again() -> None:
    host = Host()
    async with serving(friendly) as peer, host.link(peer.address) as link:
        await link.registered()
        await until(lambda: peer.ops().count("report") >= 3 and peer.ops().count("hello") >= 2)
        assert peer.connections == 1, "the full state is exchanged on the same connection"


@pytest.mark.asyncio
async def test_a_refused_page_of_the_full_state_is_asked_for_again_after_a_pause() -> None:
    refused = AppError(ErrorCode.NOT_FOUND, "no such host").as_json()

    def script(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] == "hello":
            peer.send(id=message["id"], ok={"epoch": 3, "installs": [], "more": True, "until": 9})
        elif message["op"] == "installs":
            peer.send(id=message["id"], error=refused)
        else:
            friendly(peer, message)

    budget = replace(BUDGET, host_reconcile_s=3600.0)
    budget = replace(budget, reconnect_base_s=3600.0, reconnect_s_max=3600.0)
    async with serving(script) as peer, Host().link(peer.address, budget):
        await until(lambda: peer.ops()[-3:] == ["report"] * 3)
        assert peer.ops().count("hello") == 1
    budget = replace(budget, reconnect_base_s=0.001, reconnect_s_max=0.001)
    async with serving(script) as peer, Host().link(peer.address, budget):
        await until(lambda: peer.ops().count("hello") > 2)
