"""The runs of leases, beside a table of leases whose host never started a worker."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from gpu_scheduler.data_sets import DataSet
from gpu_scheduler.model import DeviceKind, EndReason
from remote_gpu.wire.errors import Refusal, Refused
from tests.installs import install_of, share_of
from tests.unit.remote_gpu.host.host_parts import D0, host_daemon
from tests.unit.remote_gpu.wire.test_runs import ORDER


@pytest.mark.asyncio
async def test_a_card_stays_with_its_lease_until_the_run_is_over(tmp_path: Path) -> None:
    card = share_of(D0, kind=DeviceKind.CUDA)
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            parts, install = daemon.parts, install_of(1, card)
            parts.leases.apply(parts.leases.table.install(install, 0.0))
            assert not parts.runs.keeps_device(install.lease)
            assert parts.runs.order(install, ORDER)
            assert parts.runs.keeps_device(install.lease)
            assert not parts.runs.order(install, ORDER)
            parts.leases.end(install.lease, EndReason.REVOKED, "by the test")
            run = parts.runs.ending(install.lease)
            assert run is not None
            await run.gone
            await parts.leases.until(lambda: parts.runs.ending(install.lease) is None, 60.0)
            await parts.runs.close()


@pytest.mark.asyncio
async def test_a_run_that_ends_while_its_data_is_not_here_ends_its_lease(tmp_path: Path) -> None:
    weights = DataSet(name="w", source="s3://data/w", digest="0" * 64)
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            leases, runs = daemon.parts.leases, daemon.parts.runs
            install = install_of(1, share_of(D0), data_sets=(weights,))
            leases.apply(leases.table.install(install, 0.0))
            assert runs.order(install, ORDER)
            os.kill(runs._runs[install.lease].pid, signal.SIGKILL)
            assert await leases.until(lambda: leases.table.find(install.lease) is None, 60.0)
            assert await leases.until(lambda: not runs._runs, 60.0)
            await runs.close()


@pytest.mark.asyncio
async def test_orders_that_this_host_cannot_follow_are_refused(tmp_path: Path) -> None:
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            runs, install = daemon.parts.runs, install_of(1, share_of(D0))
            with pytest.raises(Refused, match="runs no images") as refused:
                runs.order(install, replace(ORDER, image="registry/image@sha256:0"))
            assert refused.value.code == Refusal.NOT_READY
