"""ssgmd as a process: it loses no answered grant, gives none twice, and refuses what is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from corekit.budget import Budget
from corekit.errors import EXIT_STATUS, AppError, ErrorCode
from corekit.ids import DeviceId, JobId, LeaseId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.daemon.app import running_daemon
from gpu_scheduler.daemon.log.engines.file import Disk, lock_folder
from gpu_scheduler.daemon.settings import DaemonSettings
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import Device, DeviceKind, EndReason, Lease, Request, Resident, Usage
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import Outcome
from gpu_scheduler.protocol.host import Install, WarmLimits
from tests.unit.gpu_scheduler_daemon.journals import disk_opener

BUDGET = Budget().scaled(0.05)


class Host:
    """HostControl and Probe of a host that only remembers; not ours to test here."""

    def __init__(self, name: str, devices: int, budget: Budget = BUDGET) -> None:
        self.name = name
        self.budget = budget
        self.count = devices
        self.held: dict[LeaseId, Install] = {}
        self.epochs: list[int] = []

    async def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(
                id=DeviceId(f"{self.name}/d{i}"),
                index=i,
                kind=DeviceKind.CUDA,
                model="M",
                memory_mib=1024,
            )
            for i in range(self.count)
        )

    async def usage(self) -> tuple[Usage, ...]:
        return ()

    async def close(self) -> None:
        pass

    def installed(self) -> tuple[LeaseId, ...]:
        return tuple(self.held)

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

    def keep_warm(self, floors: tuple[HostFloor, ...]) -> None: ...

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        self.held = {install.lease: install for install in installs}
        self.epochs.append(epoch)

    def install(self, install: Install) -> None:
        self.held[install.lease] = install

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        self.held.pop(lease, None)

    def staged(self, lease: LeaseId, connect_by_s: float) -> None: ...

    def preempt(self, lease: LeaseId, grace_s: float) -> None: ...

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None: ...

    def link_changed(self, connected: bool) -> None:
        pass

    def link(self, address: str) -> HostLink:
        return HostLink(
            address,
            host=self.name,
            control=self,
            probe=self,
            gateway="127.0.0.1:1",
            budget=self.budget,
        )


class Borrowers:
    """Workers that lend and give back for ever, and check what they are answered."""

    def __init__(self, client: SchedulerClient) -> None:
        self.client = client
        self.cycles = 0
        self.mistakes: list[str] = []
        self.stop = asyncio.Event()
        self._held: dict[str, str] = {}  # device → lease, as answered and not released
        self._fence = 0  # highest answered

    async def work(self, name: str) -> None:
        n = 0
        while not self.stop.is_set():
            n += 1
            before, epoch = self._fence, self.client.epoch
            request = Request(memory_mib=1024)
            outcome = await self.client.reserve(f"{name}-{n}", request, wait=False)
            if outcome.granted is None:
                await asyncio.sleep(0.01)
            else:
                await self._use(outcome.granted.lease, before)
                self.granted_since(epoch)

    def granted_since(self, epoch: int) -> None:
        """A request that began in this epoch was granted."""

    async def _use(self, lease: Lease, fence_before: int) -> None:
        device = lease.shares[0].device
        if device in self._held:
            mistake = f"{device} given to {lease.id} while {self._held[device]} holds it"
            self.mistakes.append(mistake)
        if lease.fence <= fence_before:
            self.mistakes.append(f"fence {lease.fence} was given after {fence_before}")
        self._fence = max(self._fence, lease.fence)
        self._held[device] = lease.id
        await self.client.renew(lease.id)  # raises NOT_FOUND if the grant was lost
        del self._held[device]
        await self.client.release(lease.id)
        self.cycles += 1


def finish(job: str, outcome: str) -> ops.Finish:
    return ops.Finish(holder=JobId(job), outcome=outcome, reason="NONE")


async def standing(client: SchedulerClient) -> tuple[object, ...]:
    records = await client.ask(ops.Records())
    return records, await client.leases(), await client.ask(ops.Queue())


async def killed_in_a_loop(programs: Any, restarts: int, cycles_each: int) -> None:
    """Every answered lease stands until it is released; no device is given to two at once."""
    programs.time_scale = 1
    daemon = programs.ssgmd()
    address = daemon.wait_ready()["socket"]
    host = Host("gpu-a", 4, Budget())
    async with host.link(address), SchedulerClient(address, deadline_s=90) as client:
        all_ = Borrowers(client)
        workers = [asyncio.ensure_future(all_.work(f"w{i}")) for i in range(6)]
        for restart in range(restarts + 1):
            wanted = cycles_each * (restart + 1)
            while all_.cycles < wanted and not any(w.done() for w in workers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if restart < restarts:
                daemon.kill()
                daemon = programs.ssgmd(listen=address)
                await asyncio.to_thread(daemon.wait_ready)
        all_.stop.set()
        await asyncio.gather(*workers)
        assert await client.leases() == ()
        assert client.epoch == restarts + 1, "the epoch rises at every start"
    assert not all_.mistakes
    assert host.epochs == sorted(host.epochs)
    assert daemon.terminate() == 0


@pytest.mark.asyncio
async def test_kill_dash_nine_in_a_loop_loses_no_answered_grant(programs: Any) -> None:
    await killed_in_a_loop(programs, restarts=3, cycles_each=6)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.asyncio
async def test_kill_dash_nine_for_long(programs: Any) -> None:
    await killed_in_a_loop(programs, restarts=150, cycles_each=40)


@pytest.mark.asyncio
async def test_a_lease_and_its_secret_survive_a_restart(programs: Any) -> None:
    daemon = programs.ssgmd()
    address = daemon.wait_ready()["socket"]
    host = Host("gpu-a", 1)
    async with host.link(address) as link, SchedulerClient(address, budget=BUDGET) as client:
        await link.registered()
        before = await client.ask(
            ops.Attempt(holder=JobId("job"), n=1, revision=0, request=Request(memory_mib=512))
        )
        assert before.granted is not None
        secret = host.held[before.granted.lease.id].secret
        daemon.kill()
        daemon = programs.ssgmd(listen=address)
        await asyncio.to_thread(daemon.wait_ready)
        again = await client.ask(
            ops.Attempt(holder=JobId("job"), n=1, revision=0, request=Request(memory_mib=512))
        )
        assert again.granted is not None
        assert again.granted.lease.id == before.granted.lease.id
        assert again.granted.secrets == before.granted.secrets == {"gpu-a": secret}
        await link.registered()
        assert list(host.held) == [before.granted.lease.id]
        assert again.record is not None
        await client.ask(finish("job", "SUCCEEDED"))
        assert await client.leases() == ()
    assert daemon.terminate() == 0


def test_a_daemon_without_the_lock_creates_no_master_key(programs: Any) -> None:
    """Two new daemons must not both make the key that secrets of leases derive from."""
    folder = programs.folder / "state"
    folder.mkdir(mode=0o700)
    held = lock_folder(folder)
    try:
        assert programs.ssgmd().process.wait(timeout=60) == 4
    finally:
        os.close(held)
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_a_folder_has_one_writer_also_while_that_one_is_stopped(programs: Any) -> None:
    """Of two started at once one serves; while it is stopped its lock keeps others away."""
    both = [programs.ssgmd(), programs.ssgmd()]
    while all(daemon.process.poll() is None for daemon in both):
        time.sleep(0.01)
    loser, winner = sorted(both, key=lambda daemon: daemon.process.poll() is None)
    assert loser.process.returncode == 4
    assert "another ssgmd runs on" in loser.log.read_text()
    http = winner.wait_ready()["http"]
    winner.process.send_signal(signal.SIGSTOP)
    third = programs.ssgmd()
    assert third.process.wait(timeout=60) == 4
    winner.process.send_signal(signal.SIGCONT)
    with urllib.request.urlopen(f"http://{http}/v1/leases", timeout=20) as answer:
        assert json.loads(answer.read())["leases"] == []
    assert winner.terminate() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--state", "/proc/x"], "ssgmd: cannot use /proc/x as the state folder: "),
        (["--state", "/dev/null"], "ssgmd: cannot use /dev/null as the state folder: "),
        (["--state", "new", "--listen", "nonsense"], "ssgmd: 'nonsense' is not an address"),
        (["--state", "new", "--http", "here"], "ssgmd: 'here' is not an address"),
    ],
)
def test_what_it_is_told_is_judged_before_any_state_is_made(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "gpu_scheduler.daemon", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == EXIT_STATUS[ErrorCode.INVALID]
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_corrupt_journal_refuses_to_start(programs: Any, tmp_path: Path) -> None:
    first = programs.ssgmd()
    first.wait_ready()
    assert first.terminate() == 0
    journal = tmp_path / "state" / "journal"
    journal.write_bytes(journal.read_bytes().replace(b"epoch_started", b"epoch_startex"))
    second = programs.ssgmd()
    assert second.process.wait(timeout=20) == 1
    assert "is damaged at item" in second.log.read_text()
    assert not second.ready.exists()


@pytest.mark.asyncio
async def test_no_room_on_the_disk_refuses_grants_and_nothing_else(programs: Any) -> None:
    """A limit on the size of files stands for the full disk; the journal wants more ahead."""
    daemon = programs.start(
        "gpu_scheduler.daemon", "--state", str(programs.folder / "state"), file_size_kib_max=1024
    )
    address = daemon.wait_ready()["socket"]
    async with SchedulerClient(address, budget=BUDGET) as client:
        with pytest.raises(AppError, match="no room for new grants") as caught:
            await client.reserve("a", Request())
        assert caught.value.code is ErrorCode.EXHAUSTED
        await client.release("lease-unknown")
        assert (await client.ask(finish("job", "FAILED"))).record is None
    assert daemon.terminate() == 0


HELLO = b'{"id":1,"op":"hello","role":"requester","session":"s","version":1}\n'


def test_a_bad_request_is_answered_and_the_connection_lives(programs: Any) -> None:
    address = programs.ssgmd().wait_ready()["socket"]
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as peer:
        file = peer.makefile("rwb")

        def ask(line: bytes) -> dict[str, Any]:
            file.write(line)
            file.flush()
            answer: dict[str, Any] = json.loads(file.readline())
            return answer

        assert "send hello first" in ask(b'{"id":0,"op":"beat"}\n')["error"]["message"]
        assert ask(b'{"id":1,"op":"hello","role":"king"}\n')["error"]["code"] == "invalid"
        assert ask(HELLO)["ok"]["epoch"] == 1
        assert "did you mean 'beat'" in ask(b'{"id":2,"op":"baet"}\n')["error"]["message"]
        wrong = ask(b'{"id":3,"op":"renew","lease":5}\n')["error"]["message"]
        assert wrong == "renew.lease: expected a string, got 5"
        assert ask(b'{"op":"beat"}\n')["id"] is None
        assert ask(b'{"id":4,"op":"beat"}\n') == {"id": 4, "ok": {}}
        broken = ask(b"GET / HTTP/1.1\r\n")
        assert broken["id"] is None
        assert "JSON lines" in broken["error"]["message"]
        assert file.readline() == b"", "a broken frame ends the connection"
        file.close()


def test_the_http_door_speaks_the_same_ops(programs: Any) -> None:
    base = "http://" + programs.ssgmd().wait_ready()["http"]

    def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(base + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                text, status = answer.read().decode(), answer.status
        except urllib.error.HTTPError as error:
            with error:
                text, status = error.read().decode(), error.code
        return status, text if path == "/metrics" else json.loads(text)

    assert ask("GET", "/healthz") == (200, {"ok": True, "role": "leader", "epoch": 1})
    assert ask("GET", "/readyz") == (200, {"ready": True})
    status, answer = ask("GET", "/v1/leases")
    assert (status, answer["leases"]) == (200, [])
    status, value = ask("POST", "/v1/reserve", {"attempt": "a", "request": {"count": 2}})
    assert (status, value["outcome"]) == (200, Outcome.IMPOSSIBLE.value)
    assert ask("DELETE", "/v1/leases/nothing") == (200, {})
    status, value = ask("POST", "/v1/reserve", {"attempt": "a", "request": {"cuont": 2}})
    assert status == 400
    assert "did you mean 'count'" in value["error"]["message"]
    assert ask("POST", "/v1/drain", {"host": "nobody"})[0] == 404
    assert ask("POST", "/v1/beat", {})[0] == 404
    status, value = ask("GET", "/v1/openapi.json")
    assert "/v1/reserve" in value["paths"]
    status, text = ask("GET", "/metrics")
    assert 'ssgmd_outcomes_total{outcome="impossible"} 1' in text
    assert "ssgmd_epoch 1" in text


@pytest.mark.asyncio
async def test_a_client_waits_through_a_restart_and_hears_of_it(programs: Any) -> None:
    daemon = programs.ssgmd()
    address = daemon.wait_ready()["socket"]
    words: list[str] = []
    async with SchedulerClient(
        address,
        budget=BUDGET,
        on_push=lambda word: words.append(type(word).__name__),
        deadline_s=20,
    ) as client:
        await client.wait_connected(20)
        daemon.kill()
        call = asyncio.ensure_future(client.ask(ops.Records()))
        await asyncio.sleep(0.1)
        assert not call.done(), "nobody is there, yet it is not given up"
        daemon = programs.ssgmd(listen=address)
        assert (await call).records == ()
        assert words == ["Connected", "Disconnected", "Connected"]


@pytest.mark.asyncio
async def test_nobody_there_is_unavailable_after_the_deadline() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*unused.getsockname())
    async with SchedulerClient(address, budget=BUDGET, deadline_s=0.2) as client:
        with pytest.raises(AppError, match="is ssgmd up") as caught:
            await client.leases()
        assert caught.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_refused_host_may_not_go_on(programs: Any) -> None:
    """A second host that claims the first one's devices is told so; its reports do not count."""
    address = programs.ssgmd().wait_ready()["socket"]
    first, second = Host("gpu-a", 1), Host("gpu-b", 1)
    second.devices = first.devices  # type: ignore[method-assign]
    async with first.link(address) as link, SchedulerClient(address, budget=BUDGET) as client:
        await link.registered()
        async with second.link(address) as refused:
            await asyncio.sleep(0.3)
            assert not refused.connected
        hosts = (await client.inventory()).hosts
        assert [host.host for host in hosts] == ["gpu-a"]


@pytest.mark.asyncio
async def test_two_daemons_on_copies_of_one_folder_do_not_both_get_a_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_daemon(DaemonSettings(state=tmp_path / "a", budget=BUDGET)):
        pass
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    host = Host("gpu-a", 1)
    async with (
        running_daemon(DaemonSettings(state=tmp_path / "b", budget=BUDGET)) as copy,
        SchedulerClient(copy.socket, budget=BUDGET) as client,
    ):
        async with running_daemon(DaemonSettings(state=tmp_path / "a", budget=BUDGET)) as first:
            assert first.epoch == copy.epoch
            async with host.link(first.socket) as link:
                await link.registered()
                seen = link.epoch_seen, link.run_seen
        link = host.link(copy.socket)
        link.epoch_seen, link.run_seen = seen
        async with asyncio.timeout(60), link:
            while "copy of the other's state folder" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not link.connected
        assert (await client.inventory()).hosts == ()


@pytest.mark.asyncio
async def test_a_disk_without_any_room_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def write(self, fd: int, data: bytes, offset: int) -> None:
            raise OSError(28, "No space left on device")

    settings = DaemonSettings(state=tmp_path, budget=BUDGET)
    async with running_daemon(settings):
        pass
    with pytest.raises(AppError, match="Free some space") as caught:
        async with running_daemon(settings, disk_opener(FullDisk())):
            pass
    assert caught.value.code is ErrorCode.EXHAUSTED


@pytest.mark.asyncio
async def test_a_compacted_journal_tells_the_same(tmp_path: Path) -> None:
    settings = DaemonSettings(state=tmp_path, budget=BUDGET)
    host = Host("gpu-a", 2)
    async with (
        running_daemon(settings) as daemon,
        host.link(daemon.socket) as link,
        SchedulerClient(daemon.socket, budget=BUDGET) as client,
    ):
        await link.registered()
        for n in range(5):
            await client.ask(
                ops.Attempt(
                    holder=JobId(f"j{n}"),
                    n=1,
                    revision=0,
                    request=Request(memory_mib=512),
                    handle=f"h{n}",
                )
            )
        await client.ask(finish("j0", "SUCCEEDED"))
        daemon.journal.compact_bytes_min = 0
        async with asyncio.timeout(60):
            while not daemon.journal.figures.compactions:
                await client.ask(
                    ops.SetParameter(name="bypass_max", value=daemon.journal.size)
                )  # another entry
        before = await standing(client)
    assert daemon.journal.figures.compactions >= 1
    async with (
        running_daemon(settings) as daemon,
        SchedulerClient(daemon.socket, budget=BUDGET, session=client.session) as again,
    ):
        after = await standing(again)
    assert daemon.epoch == 2
    assert after == before
