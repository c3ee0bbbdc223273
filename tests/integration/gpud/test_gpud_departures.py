"""Real hosts that drain and leave, and a real scheduler that forgets them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.model import GrantedLease, HostState, Request
from gpu_scheduler.protocol import answers, ops
from remote_gpu.client import Session
from remote_gpu.middleware import render
from tests.instance_metadata import InstanceMetadataServer, serving_metadata
from tests.integration.gpud.conftest import until
from tests.integration.gpud.system import System, reserve


@contextmanager
def running(folder: Path, *options: str) -> Iterator[System]:
    started = System(folder, *options)
    try:
        yield started
    finally:
        started.close()
    started.check_log()


def log_of(system: System, event: str) -> list[dict[str, Any]]:
    lines = (system.folder / "remote_gpu.host.log").read_text().splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return [record for record in records if record.get("event") == event]


def leases_log(system: System, event: str) -> list[dict[str, Any]]:
    lines = (system.folder / "gpu-a" / "leases.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["event"] == event]


async def host_view(client: SchedulerClient, name: str = "gpu-a") -> answers.HostView | None:
    found = (await client.inventory()).hosts
    return next((one for one in found if one.host == name), None)


async def until_host(
    client: SchedulerClient, holds: Callable[[answers.HostView | None], bool]
) -> answers.HostView | None:
    async with asyncio.timeout(60):
        while True:
            view = await host_view(client)
            if holds(view):
                return view
            await asyncio.sleep(0.01)


def connection(granted: GrantedLease) -> Any:
    """The connection of an envelope."""
    return render("builtin", granted)["connection"]


def is_draining(view: answers.HostView | None) -> bool:
    return view is not None and view.draining is not None


def test_a_host_drains_before_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        with running(tmp_path, "--drain-s", "60") as system:
            async with system.client() as client:
                granted = await reserve(client, "a")
                with await asyncio.to_thread(Session.open, connection(granted), 30) as session:
                    system.host.send_signal(signal.SIGTERM)
                    view = await until_host(client, is_draining)
                    assert view is not None
                    assert view.state is HostState.DRAINED
                    assert view.draining is not None
                    assert view.draining.reason == "SIGTERM"
                    late = await client.reserve("b", Request(), wait=True)
                    assert late.outcome is answers.Outcome.WAITING
                    assert session.alive
                    assert system.host.poll() is None
                assert await asyncio.to_thread(system.host.wait, 30) == 0
                view = await until_host(client, lambda one: one is not None and is_gone(one))
                assert view is not None
                system.add_host("gpu-a")
                assert (await reserve(client, "b")).lease.shares[0].host == "gpu-a"
            assert [one["why"] for one in log_of(system, "draining")] == ["SIGTERM"]
            assert len(log_of(system, "drained")) == 1

    asyncio.run(main())


def is_gone(view: answers.HostView) -> bool:
    return view.state is HostState.LOST


def test_leases_end_at_the_limit_with_a_notice(tmp_path: Path) -> None:
    async def main() -> None:
        with running(tmp_path, "--drain-s", "2") as system:
            async with system.client() as client:
                await client.ask(ops.SetParameter(name="preempt_grace_s", value=0.5))
                granted = await reserve(client, "a")
                notices: list[float] = []
                opened = await asyncio.to_thread(
                    Session.open, connection(granted), 30, on_preempt=notices.append
                )
                with opened:
                    system.host.send_signal(signal.SIGTERM)
                    assert await asyncio.to_thread(system.host.wait, 30) == 0
                    until(lambda: notices)
                assert notices[0] <= 0.5
                assert await client.leases() == ()
            assert [one["reason"] for one in leases_log(system, "closed")] == ["PREEMPTED"]

    asyncio.run(main())


def test_an_ephemeral_host_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        with running(tmp_path, "--ephemeral") as system:
            async with system.client() as client:
                await client.ask(ops.SetParameter(name="forget_after_s", value=0.5))
                view = await host_view(client)
                assert view is not None
                assert view.ephemeral
                system.host.terminate()
                assert await asyncio.to_thread(system.host.wait, 30) == 0
                assert await until_host(client, lambda one: one is None) is None

    asyncio.run(main())


def test_an_instance_of_a_group_goes_aside_and_returns_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = "autoscaling/target-lifecycle-state"

    async def main(server: InstanceMetadataServer) -> None:
        with running(tmp_path, "--instance-metadata", "on") as system:
            async with system.client() as client:
                server.items[state] = "Warmed:Running"
                view = await until_host(client, is_draining)
                assert view is not None
                assert view.draining is not None
                assert view.draining.reason == "Auto Scaling: Warmed:Running"
                server.items[state] = "InService"
                await until_host(client, lambda one: not is_draining(one))
                server.expire_tokens()
                server.items[state] = "Terminated"
                assert await asyncio.to_thread(system.host.wait, 30) == 0
                assert await until_host(client, lambda one: one is not None and is_gone(one))

    with serving_metadata() as (server, endpoint):
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        asyncio.run(main(server))


def test_a_spot_interruption_ends_leases_in_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(server: InstanceMetadataServer) -> None:
        with running(tmp_path, "--instance-metadata", "on") as system:
            async with system.client() as client:
                await client.ask(ops.SetParameter(name="preempt_grace_s", value=0.5))
                granted = await reserve(client, "a")
                with await asyncio.to_thread(Session.open, connection(granted), 30):
                    at = datetime.now(UTC) + timedelta(seconds=12)  # 10 s of them are reserved
                    notice = {"action": "terminate", "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
                    server.items["spot/instance-action"] = json.dumps(notice)
                    assert await asyncio.to_thread(system.host.wait, 30) == 0
                assert [one["reason"] for one in leases_log(system, "closed")] == ["PREEMPTED"]
            (drain,) = log_of(system, "draining")
            assert drain["why"].startswith("spot interruption: terminate")
            assert drain["limit_s"] <= 2

    with serving_metadata() as (server, endpoint):
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        asyncio.run(main(server))
