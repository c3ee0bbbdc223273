"""ssgmd with its journal in a log: it survives `kill -9`, and a take-over ends the older one."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import JobId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.daemon.log.writer import SUPERSEDED_STATUS
from gpu_scheduler.model import Request
from gpu_scheduler.protocol import ops
from tests.log_engines import ENGINES, EngineUnderTest

BUDGET = Budget()
ADVISORY = Request(memory_mib=512, advisory=True)


@pytest.fixture(scope="module", params=("postgres", "s3"))
def engine(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    with ENGINES[request.param]() as running:
        yield running


def ssgmd(programs: Any, engine: EngineUnderTest, log: str, state: str, listen: str = "") -> Any:
    programs.variables.update(engine.environment)
    options = ("--state", str(programs.folder / state), "--log", log)
    return programs.start("gpu_scheduler.daemon", *options, "--listen", listen or "127.0.0.1:0")


@pytest.mark.asyncio
async def test_no_answered_grant_is_lost(programs: Any, engine: EngineUnderTest) -> None:
    programs.time_scale = 1
    log = engine.fresh()
    daemon = ssgmd(programs, engine, log, "state")
    address = daemon.wait_ready()["socket"]
    monitor = programs.monitor(
        address, "gpu-a", programs.inventory("devices", "kind: cuda, model: M, memory_mib: 4096")
    )
    await asyncio.to_thread(monitor.wait_ready)
    async with SchedulerClient(address, budget=BUDGET) as client:
        await client.wait_connected(30)
        for number in range(3):
            answer = await client.reserve(f"r{number}", ADVISORY)
            assert answer.granted is not None
        before = {lease.id for lease in await client.leases()}
        daemon.kill()
        daemon = ssgmd(programs, engine, log, "state", address)
        assert (await asyncio.to_thread(daemon.wait_ready))["epoch"] == 2
        assert {lease.id for lease in await client.leases()} == before
    assert daemon.terminate() == 0


@pytest.mark.asyncio
async def test_the_daemon_that_is_overtaken_ends_with_a_status_of_its_own(
    programs: Any, engine: EngineUnderTest
) -> None:
    programs.time_scale = 1
    log = engine.fresh()
    one = ssgmd(programs, engine, log, "one")
    address = one.wait_ready()["socket"]
    (programs.folder / "two").mkdir(mode=0o700)
    shutil.copy(programs.folder / "one" / "master.key", programs.folder / "two")
    two = ssgmd(programs, engine, log, "two")
    assert two.wait_ready()["epoch"] == 2
    attempt = ops.Attempt(holder=JobId("job"), n=1, revision=0, request=ADVISORY)
    # it ends without an answer; on a loaded machine a beat of its own was overtaken before
    with contextlib.suppress(AppError):
        async with SchedulerClient(address, budget=BUDGET, deadline_s=1.0) as client:
            await client.wait_connected(30)
            await client.ask(attempt)
    assert await asyncio.to_thread(one.process.wait, 60) == SUPERSEDED_STATUS
    assert "another ssgmd continues the log" in one.log.read_text()
    assert two.terminate() == 0


def test_a_log_with_a_history_needs_its_master_key(programs: Any, engine: EngineUnderTest) -> None:
    log = engine.fresh()
    one = ssgmd(programs, engine, log, "one")
    one.wait_ready()
    assert one.terminate() == 0
    other = ssgmd(programs, engine, log, "other")
    assert other.process.wait(60) == 3
    assert "master.key is missing" in other.log.read_text()
    assert not (programs.folder / "other" / "master.key").exists()
