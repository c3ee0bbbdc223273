"""A fleet of real hosts: from none to some and back, with kills in between."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import LeaseId
from gpu_scheduler.client import Connected, SchedulerClient
from gpu_scheduler.client.pushes import PushWord
from gpu_scheduler.model import DeviceKind, EndReason, GrantedLease, Request, Sharing
from gpu_scheduler.protocol.answers import GrantedPush
from orchgpu.cli.main import cli
from orchgpu.fleet.ports.processes import ProcessSettings, is_held, write_settings
from orchgpu.local.ports import fixed_address
from tests.integration.conftest import Program, Programs, until
from tests.log_engines import ENGINES

REQUESTS = 8
HOSTS_MAX = 2
#: Starting eight interpreters on a machine that runs other tests takes a while.
WITHIN_S = 240.0
OFFERS = f"""\
offers:
  - {{name: small, kind: cpu, memory: 256MiB, max: {HOSTS_MAX}, idle_s: 1, start_s: 5}}
target_wait_s: 1
patience_s: 0
"""


@pytest.fixture
def system(programs: Programs) -> Programs:
    """Folders of a fleet; the programs of its hosts end by the lifeline at the latest."""
    programs.time_scale = 1.0  # a loaded machine must not pass for a silent host
    programs.folder.joinpath("offers.yaml").write_text(OFFERS)
    return programs


def scheduler(programs: Programs) -> str:
    offers = str(programs.folder / "offers.yaml")
    started = programs.start(
        *("gpu_scheduler.daemon", "--state", str(programs.folder / "state")),
        *("--listen", "127.0.0.1:0", "--capacity", offers),
    )
    return str(started.wait_ready()["socket"])


def hosts_folder(programs: Programs, address: str) -> Path:
    folder = programs.folder / "hosts"
    gpud = (
        *(sys.executable, "-m", "remote_gpu.host", "--ephemeral", "--no-nvml", "--drain-s", "0"),
        *("--host-id", "{host}", "--scheduler", address, "--state", "{state}"),
        *("--memory-mib", "256", "--operation", "noop", "--no-warm-workers"),
    )
    write_settings(folder, ProcessSettings(command=gpud, delay_s=0.5))
    return folder


def fleet(programs: Programs, address: str, *more: str) -> Program:
    program = programs.start(
        *("orchgpu", "fleet", "run", "--scheduler", address, *more),
        *("--offers", str(programs.folder / "offers.yaml")),
        *("--provider", f"processes:{programs.folder / 'hosts'}"),
        *("--memory", str(programs.folder / "memory.json")),
    )
    program.wait_ready()
    return program


def records(folder: Path) -> list[Path]:
    """Files of living hosts."""
    return [file for file in folder.glob("groups/*/*.json") if is_held(file)]


def pid_of(file: Path) -> int | None:
    try:
        pid = json.loads(file.read_text()).get("pid")
    except (OSError, ValueError):
        return None
    return None if pid is None else int(pid)


def processes_of(folder: Path) -> list[int]:
    """Processes of hosts of this folder, by their command lines."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


class Jobs:
    """Requests that wait for a device, hold it for a moment, and give it back."""

    def __init__(self, address: str) -> None:
        self.grants: Counter[str] = Counter()
        self.most = 0  #: hosts at the same time
        self.why = ""  #: the last request waits for a host
        self._leases: set[LeaseId] = set()
        self._mail: asyncio.Queue[PushWord] = asyncio.Queue()
        self._address = address

    async def run(self, folder: Path, kill: object) -> None:
        """Serve all requests; `kill` is called once when the first host has started."""
        request = Request(kinds=(DeviceKind.CPU,), sharing=Sharing.EXCLUSIVE)
        async with (
            SchedulerClient(
                self._address, budget=Budget(), on_push=self._mail.put_nowait
            ) as client,
            asyncio.timeout(WITHIN_S),
            asyncio.TaskGroup() as group,
        ):
            await self._reserve(client, request)
            watching = group.create_task(self._watch(client, folder, kill))
            while len(self.grants) < REQUESTS:
                push = await self._mail.get()
                if isinstance(push, Connected):  # pushes of a scheduler that died are lost
                    await self._reserve(client, request)
                elif isinstance(push, GrantedPush):
                    await self._use(client, push.attempt, push.granted)
            watching.cancel()

    async def _reserve(self, client: SchedulerClient, request: Request) -> None:
        for name in [f"r{n}" for n in range(REQUESTS) if f"r{n}" not in self.grants]:
            answer = await client.reserve(name, request, wait=True)
            if answer.granted is not None:
                await self._use(client, name, answer.granted)

    async def _use(self, client: SchedulerClient, attempt: str, granted: GrantedLease) -> None:
        lease = granted.lease.id
        if lease in self._leases:
            return  # its push and an answer
        self._leases.add(lease)
        self.grants[attempt] += 1
        await client.renew(lease)
        await asyncio.sleep(0.3)
        await client.release(lease, EndReason.DONE)

    async def _watch(self, client: SchedulerClient, folder: Path, kill: object) -> None:
        assert callable(kill)
        killed = False
        while True:
            living = records(folder)
            self.most = max(self.most, len(living))
            if living and not killed and pid_of(living[0]) is not None:
                killed = True
                kill(living[0])
            if not self.why:
                with contextlib.suppress(AppError):  # the scheduler dies in some tests
                    found = await client.explain(attempt=f"r{REQUESTS - 1}")
                    self.why = found.explanation.expected_why if found.explanation.pool else ""
            await asyncio.sleep(0.05)


def test_hosts_come_and_go_and_kills_neither_double_nor_orphan_one(system: Programs) -> None:
    address = scheduler(system)
    folder = hosts_folder(system, address)
    first = fleet(system, address)

    def kill(starting: Path) -> None:
        pid = pid_of(starting)
        assert pid is not None
        first.kill()
        os.kill(pid, signal.SIGKILL)
        fleet(system, address)

    jobs = Jobs(address)
    asyncio.run(jobs.run(folder, kill))
    assert jobs.grants == {f"r{n}": 1 for n in range(REQUESTS)}
    assert 1 <= jobs.most <= HOSTS_MAX
    assert jobs.why.startswith(("a host of pool small, started", "a host of pool small, ordered"))
    until("all hosts are gone", lambda: not records(folder), WITHIN_S)
    until("all their processes are gone", lambda: not processes_of(folder / "groups"))
    second = system.started[-1]
    log = second.log.read_text()
    assert "is drained and has no lease" in log
    assert second.terminate() == 0
    assert json.loads((system.folder / "memory.json").read_text())["pools"]["small"]["starts_s"]


@pytest.mark.soak
def test_a_take_over_of_the_scheduler_neither_doubles_nor_orphans_a_host(system: Programs) -> None:
    with ENGINES["s3"]() as engine:
        system.variables |= engine.environment
        leader, standby = pair_of_schedulers(system, engine.fresh())
        address = ",".join((leader.address, standby.address))
        folder = hosts_folder(system, address)
        fleet(system, address)
        jobs = Jobs(address)
        asyncio.run(jobs.run(folder, lambda _: leader.program.kill()))
        assert jobs.grants == {f"r{n}": 1 for n in range(REQUESTS)}
        assert 1 <= jobs.most <= HOSTS_MAX
        until("all hosts are gone", lambda: not records(folder), WITHIN_S)
        until("all their processes are gone", lambda: not processes_of(folder / "groups"))


@dataclass
class Scheduler:
    """One of two schedulers over one log."""

    address: str
    program: Program


def pair_of_schedulers(system: Programs, log: str) -> tuple[Scheduler, Scheduler]:
    """The leader, and its standby."""
    (system.folder / "master.key").write_text(secrets.token_hex(32))
    (system.folder / "master.key").chmod(0o600)
    found = []
    for name in ("leader", "standby"):
        address = fixed_address()
        program = system.start(
            *("gpu_scheduler.daemon", "--state", str(system.folder / name), "--standby"),
            *("--log", log, "--listen", address, "--http", fixed_address()),
            *("--master-key", str(system.folder / "master.key")),
            *("--capacity", str(system.folder / "offers.yaml")),
        )
        program.wait_ready()
        found.append(Scheduler(address, program))
    return found[0], found[1]


def test_a_stopped_fleet_leaves_hosts_or_ends_them_as_asked(system: Programs) -> None:
    text = OFFERS.replace("max:", "min: 1, max:")
    (system.folder / "offers.yaml").write_text(text)
    address = scheduler(system)
    folder = hosts_folder(system, address)
    assert fleet_after_first_host(system, address, folder).terminate() == 0
    (left,) = records(folder)
    ending = fleet(system, address, "--stop-hosts")
    assert records(folder) == [left]
    assert ending.terminate() == 0
    assert records(folder) == []
    until("its processes are gone", lambda: not processes_of(folder / "groups"))


def fleet_after_first_host(system: Programs, address: str, folder: Path) -> Program:
    program = fleet(system, address)
    until("a host has come", lambda: any(map(pid_of, records(folder))), WITHIN_S)
    return program


def test_status_and_plan_show_pools_reasons_and_notices(system: Programs) -> None:
    address = scheduler(system)
    folder = hosts_folder(system, address)
    offers, provider = str(system.folder / "offers.yaml"), f"processes:{folder}"
    named = ["--offers", offers, "--provider", provider, "--scheduler", address]

    async def wait() -> dict[str, object]:
        async with SchedulerClient(address, budget=Budget()) as client:
            await client.reserve("r", Request(sharing=Sharing.EXCLUSIVE), wait=True)
            shown = await asyncio.to_thread(run, "plan", *named)
            assert "small: start 1 (1 in all): waiting requests need 1 more" in shown
            shown = await asyncio.to_thread(run, "status", *named)
            assert "0-2" in shown
            assert "1 requests wait" in shown
            found: dict[str, object] = json.loads(
                await asyncio.to_thread(run, "status", *named, "--json")
            )
            return found

    found = asyncio.run(wait())
    assert found["waiting"] == 1
    assert records(folder) == [], "a plan starts nothing"


def run(*words: str) -> str:
    done = CliRunner().invoke(cli, ["fleet", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_month_that_nothing_keeps_is_a_warning_to_whoever_looks(system: Programs) -> None:
    offers, address = system.folder / "offers.yaml", scheduler(system)
    offers.write_text(OFFERS + "usd_per_month_max: 10\n")
    provider = f"processes:{hosts_folder(system, address)}"
    named = ["--offers", str(offers), "--provider", provider, "--scheduler", address]
    for word in ("status", "plan"):
        done = CliRunner().invoke(cli, ["fleet", word, *named])
        assert done.exit_code == 0, done.output
        assert "warning: usd_per_month_max needs a file" in done.stderr
    done = CliRunner().invoke(cli, ["fleet", "run", *named])
    assert isinstance(done.exception, AppError)
    assert "give --memory FILE" in done.exception.message


def test_a_fleet_says_what_is_wrong_with_its_files(tmp_path: Path) -> None:
    offers = tmp_path / "offers.yaml"
    offers.write_text("offers: []\nusd_per_hour_max: x\n")
    words = ["fleet", "plan", "--offers", str(offers), "--provider", "processes:/nowhere"]
    done = CliRunner().invoke(cli, [*words, "--scheduler", "127.0.0.1:1"])
    assert isinstance(done.exception, AppError)
    assert f"{offers}:2:19: error: usd_per_hour_max" in done.exception.message
