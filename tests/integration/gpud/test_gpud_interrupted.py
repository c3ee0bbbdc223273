"""An error at any await while gpud serves one thing ends that one, never the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corekit.budget import Budget
from corekit.ids import HostId
from gpu_scheduler.protocol.host import Install
from remote_gpu.client import Devices, Refused, Session, connect
from remote_gpu.host.app import HostSettings, RunningHost, running_host
from remote_gpu.host.devices.probe import CpuSettings
from remote_gpu.host.options import HostOptions
from tests.installs import install_of, share_of
from tests.integration.gpud.conftest import SCALE, WAIT_S, SchedulerSide, until
from tests.interruptions import interruptions

HOST = HostId("gpu-a")


class Client:
    """A scheduler and the holders of its leases, in threads beside the daemon."""

    def __init__(self, scheduler: SchedulerSide, host: RunningHost) -> None:
        self.scheduler = scheduler
        self._gateway = host.gateway
        self._model = scheduler.hellos.get(timeout=WAIT_S)["devices"][0]["model"]
        self._fence = 0

    def lease(self) -> Install:
        self._fence += 1
        share = share_of(f"{HOST}/cpu0", host=HOST, model=self._model, memory_mib=400)
        install = install_of(self._fence, share, secret=secrets.token_hex(32))
        self.scheduler.install(install)
        return install

    def open(self, install: Install) -> Session:
        device = {"index": 0, "kind": "cpu", "model": "m", "memory_mib": 1}
        host = {
            "host": HOST,
            "gateway": self._gateway,
            "secret": install.secret,
            "devices": [device],
        }
        about = {"lease": install.lease, "fence": install.fence, "hosts": [host]}
        return Session.open({"middleware": "builtin", **about}, 60.0)

    def opened(self, install: Install) -> tuple[Session, Devices]:
        """A session with a lane. Raises Refused."""
        session = self.open(install)
        device = connect(session.environment())
        device.op("noop")
        return session, device

    def served(self) -> None:
        """A lease from its install to its certain end. Raises Refused."""
        install = self.lease()
        try:
            with self.open(install) as session, connect(session.environment()) as device:
                device.op("noop")
                session.give_back()
        finally:
            if install.lease in self.scheduler.installs:
                self.scheduler.end(install)
            until(lambda: self.scheduler.is_cut(install.lease))

    def interrupted(self) -> None:
        """The same, whatever happens to its session."""
        with contextlib.suppress(Refused):
            self.served()


@contextlib.asynccontextmanager
async def gpud(folder: Path) -> AsyncIterator[tuple[RunningHost, Client]]:
    """A host in this process, whose nurseries are those of the test."""
    scheduler = SchedulerSide()
    try:
        settings = HostSettings(
            options=HostOptions(host_id=HOST, scheduler=scheduler.address, state=folder / "state"),
            cpu=CpuSettings(host=HOST, cpus=(0,), memory_mib=1024),
            budget=Budget().scaled(SCALE),
            operations=("noop",),
        )
        async with running_host(settings, lambda: None) as host:
            await host.link.registered()
            yield host, Client(scheduler, host)
    finally:
        scheduler.close()


@pytest.mark.asyncio
async def test_an_error_ends_one_lease_and_leaves_nothing(tmp_path: Path) -> None:
    """In each task that gpud starts while it lives: of connections, workers, ends, loops."""
    with interruptions() as found:
        async with gpud(tmp_path) as (host, client):
            await asyncio.to_thread(client.served)
            found.spares, other = True, client.lease()
            session, device = await asyncio.to_thread(client.opened, other)
            found.spares = False
            for kind in sorted(found.kinds):
                for _ in found.points(kind):
                    await asyncio.to_thread(client.interrupted)
                    found.disarm()
                    await asyncio.to_thread(device.op, "noop")
                    assert host.leases.installed() == (other.lease,)
                await asyncio.to_thread(client.served)
            await found.settled()
            device.close()
            await asyncio.to_thread(session.close)
    assert not found.failures
    assert {"connection", "worker", "kill", "sandbox", "deadlines", "gateway"} <= found.kinds
