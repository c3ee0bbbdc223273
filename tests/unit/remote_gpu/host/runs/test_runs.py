"""The runs of leases, beside a table of leases whose host never started a worker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import LeaseId
from gpu_scheduler.data_sets import DataSet
from gpu_scheduler.model import DeviceKind, EndReason
from remote_gpu.host.gateway.relays import relayed
from remote_gpu.host.parts import Parts
from remote_gpu.host.runs.launch import RunStart
from remote_gpu.host.runs.run import Run
from remote_gpu.host.runs.runs import FunctionRuns, RunSettings
from remote_gpu.isolation.apply import Sandbox
from remote_gpu.isolation.places import HostFiles
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.run import RunReach
from remote_gpu.wire.errors import Refusal, Refused
from tests.installs import install_of, share_of
from tests.unit.remote_gpu.host.host_parts import D0, host_daemon, run_settings
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
async def test_a_run_that_ends_while_its_sandbox_is_made_leaves_nothing(tmp_path: Path) -> None:
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            parts, install = daemon.parts, install_of(1, share_of(D0))
            parts.leases.apply(parts.leases.table.install(install, 0.0))
            async with parts.outside.sandboxes._making:
                parts.runs.order(install, ORDER)
                parts.leases.end(install.lease, EndReason.REVOKED, "by the test")
                assert parts.runs.ending(install.lease) is not None
                run = parts.runs._runs[install.lease]
                await run.exited
            await run.removed
            assert list((tmp_path / "scratch").iterdir()) == []
            await parts.leases.until(lambda: parts.runs.ending(install.lease) is None, 60.0)
            assert parts.runs._kept == {}


@pytest.mark.asyncio
async def test_a_run_is_gone_before_its_files_are_removed(tmp_path: Path) -> None:
    """A card whose processes are gone is free, however large the workspace was."""
    left: list[int] = []
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            runs, sandboxes = daemon.parts.runs, daemon.parts.outside.sandboxes
            run = Run(ORDER, nursery, namespaced=False)
            run.enter(await sandboxes.make("t", 1 << 20, ("cpu",), None))
            scratch = tmp_path / "scratch"
            run.gone.add_done_callback(lambda _: left.append(len(list(scratch.iterdir()))))
            run.kill("by the test")
            await run.removed
            assert (left, list(scratch.iterdir())) == ([1], [])
            await runs.close()


@pytest.mark.asyncio
async def test_a_parked_run_has_no_callers(tmp_path: Path) -> None:
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            run = Run(replace(ORDER, warm=True, called=True), nursery, namespaced=False)
            run.enter(await daemon.parts.outside.sandboxes.make("t", 1 << 20, ("cpu",), None))
            assert run.calls is not None
            caller, outer = socket.socketpair()
            with caller:
                caller.settimeout(20)
                relay = relayed((run.calls.relays,), outer, run.calls.connect())
                nursery.start(relay, "relay")
                await asyncio.sleep(0)
                assert run.calls.relays
                await run.park()
                assert await asyncio.to_thread(caller.recv, 1) == b""
                run.calls.connect().close()  # its next order may be called
            run.kill("by the test")
            await run.removed
            await daemon.parts.runs.close()


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
async def test_work_for_a_run_that_has_ended_is_an_error_of_that_run() -> None:
    async with Nursery("test") as nursery:
        run = Run(ORDER, nursery, namespaced=False)
        run.kill()
        await run.removed
        start = RunStart(
            parent=os.getpid(),
            policy=IsolationPolicy(),
            sandbox=Sandbox(),
            reach=RunReach(files=HostFiles(), packages=Path(), gateway_port=1),
            package=ORDER.package,
            aws={},
            runner={},
        )
        with pytest.raises(OSError, match="has ended"):
            run.begin(start)


@pytest.mark.parametrize("failing", ["pipe", "pidfd_open"])
@pytest.mark.asyncio
async def test_a_run_that_cannot_be_started_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no descriptor is left")

    async with Nursery("test") as nursery:
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(os, failing, refuse)
            with pytest.raises(OSError, match="no descriptor"):
                Run(ORDER, nursery, namespaced=False)
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.asyncio
async def test_orders_that_this_host_cannot_follow_are_refused(tmp_path: Path) -> None:
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            runs, install = daemon.parts.runs, install_of(1, share_of(D0))
            with pytest.raises(Refused, match="runs no images") as refused:
                runs.order(install, replace(ORDER, image="registry/image@sha256:0"))
            assert refused.value.code == Refusal.NOT_READY
            aws = {"AWS_ENDPOINT_URL": "http://127.0.0.1:99999"}
            with pytest.raises(Refused, match="is not a valid URL") as refused:
                runs.order(install, replace(ORDER, aws=aws))
            assert refused.value.code == Refusal.PROTOCOL


@pytest.mark.asyncio
async def test_runs_together_have_no_more_than_the_memory_of_their_machine(tmp_path: Path) -> None:
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            parts, settings = daemon.parts, replace(run_settings(tmp_path), memory_mib=100)
            runs = _runs(parts, settings, nursery)
            order = replace(ORDER, memory_mib=60)
            first, second = (install_of(n, share_of(D0), lease=LeaseId(f"l{n}")) for n in (1, 2))
            assert runs.order(first, order)
            with pytest.raises(Refused, match="of which 60 MiB are booked") as refused:
                runs.order(second, order)
            assert refused.value.code == Refusal.NOT_READY
            await runs.close()
            assert runs.order(second, order)
            await runs.close()


@pytest.mark.asyncio
async def test_a_parked_program_is_booked_and_makes_room_for_another_run(tmp_path: Path) -> None:
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            parts, settings = daemon.parts, replace(run_settings(tmp_path), memory_mib=100)
            runs = _runs(parts, settings, nursery)
            order = replace(ORDER, memory_mib=60, warm=True)
            first, second, third = (
                install_of(n, share_of(D0), lease=LeaseId(f"l{n}"), workload="w") for n in (1, 2, 3)
            )
            assert runs.order(first, order)
            run = runs._runs.pop(first.lease)
            run.leave(await parts.warm.park(first, run, 1.0))
            with pytest.raises(Refused, match="of which 60 MiB are booked"):
                runs.order(second, replace(order, memory_mib=101))
            assert parts.leases.table.warm.find(run.parked) is not None
            assert runs.order(second, order)
            assert parts.leases.table.warm.find(run.parked) is None
            with pytest.raises(Refused, match="of which 120 MiB are booked"):  # one ends
                runs.order(third, order)
            await run.gone
            await runs.close()


@pytest.mark.asyncio
async def test_a_program_whose_lease_ended_without_a_run_makes_room_too(tmp_path: Path) -> None:
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            parts, settings = daemon.parts, replace(run_settings(tmp_path), memory_mib=100)
            runs = _runs(parts, settings, nursery)
            order = replace(ORDER, memory_mib=60, warm=True)
            first, second = (
                install_of(n, share_of(D0), lease=LeaseId(f"l{n}"), workload="w") for n in (1, 2)
            )
            assert runs.order(first, order)
            run = runs._runs.pop(first.lease)
            run.leave(name := await parts.warm.park(first, run, 1.0))
            parts.leases.table.warm.take(name)
            parts.warm.take(second.lease, name)
            parts.warm.unused_program(second.lease)
            assert parts.warm.id_of(run) not in ("", name)
            assert runs.order(second, order)
            assert parts.warm.id_of(run) == ""
            await run.gone
            await runs.close()


@pytest.mark.asyncio
async def test_a_program_that_is_being_parked_is_not_cut(tmp_path: Path) -> None:
    """Its freeze has a limit of its own; a lease could adopt a process that is killed."""
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            runs, install = daemon.parts.runs, install_of(1, share_of(D0), workload="w")
            assert runs.order(install, replace(ORDER, warm=True))
            run = runs._runs[install.lease]
            run.parking = True
            runs._cut(install.lease, run, "too late")
            assert run.why_killed == ""
            run.parking = False
            runs._cut(install.lease, run, "too late")
            assert run.why_killed == "too late"
            await runs.close()


@pytest.mark.asyncio
async def test_a_program_stays_though_the_end_of_its_lease_is_repeated(tmp_path: Path) -> None:
    """A message about the lease came as it ended, so the end is reported again."""
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            runs, table = daemon.parts.runs, daemon.parts.leases.table
            install = install_of(1, share_of(D0), workload="w")
            table.install(install, 0.0)
            assert runs.order(install, replace(ORDER, warm=True))
            run, end = runs._runs[install.lease], table.end(install.lease, EndReason.DONE)[0]
            for step in (end, *table.install(install, 0.0)):
                runs.end(step)
                assert run.stays, step
            await runs.close()


@pytest.mark.asyncio
async def test_a_run_with_a_container_is_never_parked(tmp_path: Path) -> None:
    """The container's processes are in a group of its own, which is not frozen."""
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            runs, install = daemon.parts.runs, install_of(1, share_of(D0), workload="w")
            assert runs.order(install, replace(ORDER, warm=True))
            run = runs._runs[install.lease]
            assert runs.may_park(install.lease)
            run.container = object()  # type: ignore[assignment]
            assert not runs.may_park(install.lease)
            run.container = None
            await runs.close()


@pytest.mark.parametrize(
    ("kind", "parks"),
    [(DeviceKind.CPU, True), (DeviceKind.CUDA, False), (DeviceKind.OPENCL, False)],
)
@pytest.mark.asyncio
async def test_nothing_is_parked_after_a_lease_with_a_card(
    tmp_path: Path, kind: DeviceKind, parks: bool
) -> None:
    """What it launched there would run on without a lease."""
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 100}) as (daemon, _):
            runs, install = daemon.parts.runs, install_of(1, share_of(D0, kind=kind), workload="w")
            assert runs.order(install, replace(ORDER, warm=True))
            assert runs.may_park(install.lease) is parks
            await runs.close()


def _runs(parts: Parts, settings: RunSettings, nursery: Nursery) -> FunctionRuns:
    sandboxes = parts.outside.sandboxes
    return FunctionRuns(
        settings, parts.leases, sandboxes, parts.data, parts.warm, Budget(), nursery
    )
