"""What a standby answers, and what commands show of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corekit.budget import Budget
from corekit.errors import AppError
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.events import watched
from gpu_scheduler.client.status import SchedulerRole, SchedulerStatus, SystemStatus
from gpu_scheduler.protocol.watch import Current, Lost, Reset, Started
from orchgpu.cli.commands.operation.doctor import check_standbys
from tests.integration.conftest import until
from tests.integration.failover.pair import Ssgmd
from tests.postgres_server import PostgresServer, postgres_server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def both(server: PostgresServer, tmp_path: Path) -> Iterator[tuple[Ssgmd, Ssgmd]]:
    """A leader and its standby, without links between."""
    (tmp_path / "master.key").write_bytes(secrets.token_bytes(32))
    (tmp_path / "master.key").chmod(0o600)
    log = server.url(f"log_{secrets.token_hex(4)}")
    daemons = [Ssgmd(tmp_path / name, log) for name in "ab"]
    try:
        for one in daemons:
            one.address = one.listen  # as it advertises
            one.start()
            until_role(one, "leader" if one is daemons[0] else "standby")
        until("it has read the log", lambda: daemons[1].health().get("epoch") == 1)
        yield daemons[0], daemons[1]
    finally:
        for one in daemons:
            one.end()


def until_role(one: Ssgmd, role: str) -> None:
    until(role, lambda: one.health().get("role") == role)


def get(one: Ssgmd, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{one.http}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ssgm(scheduler: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "gpu_scheduler.client", *words, "--scheduler", scheduler]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, env={**os.environ})


def test_a_standby_names_the_leader_at_every_path(both: tuple[Ssgmd, Ssgmd]) -> None:
    leader, standby = both
    status, text = get(standby, "/healthz")
    health = json.loads(text)
    assert (status, health["leader"], health["epoch"]) == (200, leader.listen, 1)
    assert get(standby, "/readyz")[0] == 503
    for path in ("/v1/leases", "/v1/inventory", "/v1/watch"):
        status, text = get(standby, path)
        error = json.loads(text)["error"]
        assert (status, error["code"]) == (503, "unavailable")
        assert error["details"]["leader_http"] == leader.http
        assert f"the leader is {leader.listen}" in error["message"]


def test_the_metrics_of_both_tell_which_one_leads(both: tuple[Ssgmd, Ssgmd]) -> None:
    leader, standby = both
    assert "ssgmd_leader 1\n" in get(leader, "/metrics")[1]
    text = get(standby, "/metrics")[1]
    assert "ssgmd_leader 0\n" in text
    assert "ssgmd_standby_lag_seconds " in text
    assert json.loads(get(leader, "/healthz")[1])["role"] == "leader"


def test_commands_follow_the_leader_and_status_shows_both(both: tuple[Ssgmd, Ssgmd]) -> None:
    leader, standby = both
    done = ssgm(standby.listen, "leases", "--json")  # only the standby is given
    assert done.returncode == 0, done.stderr
    addresses = f"{standby.listen},{leader.listen}"
    shown = ssgm(addresses, "status", "--json")
    assert shown.returncode == 0, shown.stderr
    found: list[dict[str, Any]] = json.loads(shown.stdout)["schedulers"]
    assert [one["role"] for one in found] == ["STANDBY", "LEADER"]
    assert found[0]["leader"] == leader.listen
    assert found[0]["lag_s"] < 60
    assert "follows" in ssgm(addresses, "status").stdout
    leader.end()
    alone = ssgm(leader.listen, "status", "--timeout", "5s")
    assert alone.returncode == 8
    assert "UNKNOWN" in alone.stdout


def test_an_event_stream_goes_on_with_a_reset_after_a_take_over(both: tuple[Ssgmd, Ssgmd]) -> None:
    leader, standby = both

    async def seen() -> list[object]:
        found: list[object] = []
        events = watched(f"{standby.http},{leader.http}", Access(), budget=Budget())
        async with asyncio.timeout(120), contextlib.aclosing(events):
            async for one in events:
                found += [] if one.name == "beat" else [one.event]
                if isinstance(one.event, Current):
                    leader.end()
                if isinstance(one.event, Reset):
                    return found
        raise AssertionError("the stream of a client has no end")

    started, _, lost, reset = asyncio.run(seen())
    assert isinstance(started, Started)
    assert isinstance(lost, Lost)
    assert isinstance(reset, Reset)
    assert (started.epoch, reset.epoch) == (1, 2)


def test_a_standby_with_another_master_key_refuses_to_stand_by(
    both: tuple[Ssgmd, Ssgmd], tmp_path: Path
) -> None:
    _, standby = both
    standby.end()
    (tmp_path / "master.key").write_bytes(secrets.token_bytes(32))
    standby.start()
    assert standby.process is not None
    assert standby.process.wait(60) == 2
    assert "the master key differs" in (tmp_path / "b.log").read_text()


def test_a_standby_needs_a_log_and_a_fixed_port(server: PostgresServer, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "gpu_scheduler.daemon", "--state", str(tmp_path / "s")]
    line += ["--standby"]
    for words, text in (
        ((), "--standby needs a log"),
        (("--log", server.url("ports")), "--standby needs a fixed port in --listen"),
    ):
        done = subprocess.run([*line, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert text in done.stderr
    assert not (tmp_path / "s").exists()


LEADS = SchedulerStatus(address="a:1", role=SchedulerRole.LEADER, epoch=7)


def test_doctor_describes_a_sound_pair() -> None:
    standby = SchedulerStatus(address="b:1", role=SchedulerRole.STANDBY, epoch=7, lag_s=0.2)
    text = check_standbys(SystemStatus(schedulers=(LEADS, standby)))
    assert text == "a:1 leads (epoch 7); b:1 stands by, 0.2 s behind"


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (SchedulerStatus(address="b:1", role=SchedulerRole.STANDBY, lag_s=99.0), "b:1 could not"),
        (SchedulerStatus(address="b:1", role=SchedulerRole.UNKNOWN, problem="refused"), "refused"),
    ],
)
def test_doctor_finds_a_standby_that_could_not_take_over(
    other: SchedulerStatus, problem: str
) -> None:
    with pytest.raises(AppError, match=problem):
        check_standbys(SystemStatus(schedulers=(LEADS, other)))
    with pytest.raises(AppError, match="none of them leads"):
        check_standbys(SystemStatus(schedulers=(other,)))
