"""The first events of an epoch, and the core's timer, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import cast

from corekit.aio.clock import LoopClock
from corekit.aio.driver import Driver
from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, IdSource
from corekit.machine import Decision
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.access.authorizer import Authorizer
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.daemon.access.secret import LeaseSecrets
from gpu_scheduler.daemon.app import begin_epoch
from gpu_scheduler.daemon.endpoints.connections import ConnectionRegistry
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.daemon.performer import Performer
from gpu_scheduler.model import Device, DeviceKind, HostState
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol.changes import Entry, HostRegistered

BUDGET = Budget()
GPU = HostId("gpu-a")


class SlowLog:
    """A journal whose puts last longer than any deadline of the first events."""

    async def _put(self) -> None:
        await asyncio.sleep(BUDGET.host_lost_s + 1.0)

    def append(self, changes: Sequence[Entry]) -> Awaitable[None]:
        del changes
        return self._put()


def device(number: int) -> Device:
    return Device(
        id=DeviceId(f"{GPU}/{number}"),
        index=number,
        kind=DeviceKind.CPU,
        model="cpu",
        memory_mib=1000,
    )


def performer(folder: Path) -> Performer:
    authorizer = Authorizer(folder / "keys.json", lambda _: None, lambda _: None, lambda _: None)
    registry = ConnectionRegistry(LeaseSecrets(bytes(32)), Metrics(), Redaction(authorizer))
    return Performer(registry, LoopClock())


def test_a_deadline_that_passes_while_the_first_events_are_written_is_kept(tmp_path: Path) -> None:
    """The core asks for one tick at a time: without it, no deadline would ever come again."""

    async def main() -> HostState:
        machine = SchedulerMachine(BUDGET, IdSource("test"), Parameters(), installed_policies())
        known = HostRegistered(host=GPU, incarnation="one", gateway=None, devices=(device(0),))
        machine.apply(Entry(parts=(known,)))
        acting, journal = performer(tmp_path), cast("Journal", SlowLog())
        clock = LoopClock()
        at_s, wall_s = clock.monotonic_s(), clock.wall_s()
        first = on.EpochBegan(run="run", build="test", at_s=at_s, wall_s=wall_s)
        capacity = on.CapacityDeclared(devices=(device(1),), at_s=at_s, wall_s=wall_s)
        await begin_epoch(machine, journal, acting, iter([first, capacity]))
        async with Nursery("test") as nursery:
            driver = acting.driven(machine, journal, nursery)
            nursery.start_eternal(driver.run(), "driver")
            await asyncio.sleep(3 * BUDGET.host_lost_s)  # the time of the append is no silence
            await nursery.close()
        acting.close()
        return machine.state.inventory.hosts[GPU].state

    assert run_virtual(main()) is HostState.LOST


class CountedTicks:
    """A core that counts its events."""

    def __init__(self) -> None:
        self.count = 0

    def handle(self, event: on.Event) -> Decision[Entry, do.Action]:
        del event
        self.count += 1
        return Decision((), ())

    def apply(self, change: Entry) -> None:
        raise AssertionError("nothing is replayed")


def test_a_tick_for_which_the_queue_had_no_room_is_repeated(tmp_path: Path) -> None:
    async def main() -> int:
        core, acting, clock = CountedTicks(), performer(tmp_path), LoopClock()
        journal = cast("Journal", SlowLog())
        async with Nursery("test") as nursery:
            driver: Driver[on.Event, Entry, do.Action] = Driver(
                core, journal, acting.perform, nursery, queue_max=1
            )
            acting.driver = driver
            acting.submit(on.Ticked(at_s=clock.monotonic_s(), wall_s=clock.wall_s()))
            acting.perform(do.WakeAt(at_s=clock.monotonic_s()))
            await asyncio.sleep(1.0)  # the queue is full: nothing drives the core yet
            nursery.start_eternal(driver.run(), "driver")
            await asyncio.sleep(1.0)
            await nursery.close()
        acting.close()
        return core.count

    assert run_virtual(main()) == 2
