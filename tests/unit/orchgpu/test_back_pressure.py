"""A scheduler at its limits: jobs wait and ask again, none fails, and less is received."""

from __future__ import annotations

import asyncio

from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, SessionId
from gpu_scheduler.model import Device, DeviceKind, Health, Symptom
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import NOT_STARTED
from orchgpu.replica.observer import Window
from tests.scheduler_events import event_of
from tests.unit.orchgpu.jobs import JOB, NOW
from tests.unit.orchgpu.jobs import Bench as MachineBench
from tests.unit.orchgpu.test_replica import Bench, played


def test_a_window_halves_when_it_is_refused_and_grows_with_what_is_taken() -> None:
    window = Window(8)
    window.admitted()
    assert window.size == 8
    sizes = []
    for _ in range(4):
        window.refused()
        sizes.append(window.size)
    assert sizes == [4, 2, 1, 1]
    window.resize(16)
    assert window.size == 1, "more devices do not undo what the scheduler said"
    window.resize(16)
    assert window.size == 2, "it refused none since the last look"
    for _ in range(20):
        window.admitted()
    assert window.size == 16
    window.resize(4)
    assert window.size == 4
    window.resize(32)
    assert window.size == 32


def test_a_job_that_is_refused_at_a_limit_repeats_its_request_and_never_fails() -> None:
    bench = MachineBench()
    bench.read()
    action = bench.one(do.OpenAttempt)
    for _ in range(200):
        failed = on.CallFailed(
            **NOW, job=JOB, action=action, retryable=True, message="full", exhausted=True
        )
        bench.tell(failed)
        later = bench.one(do.RepeatLater)
        assert bench.actions == (later,), "it is not ended, and nothing is buried"
        due = on.RepeatDue(**NOW, job=JOB, action=later.action)
        assert bench.tell(due) == (action,)


def test_less_is_received_while_the_scheduler_takes_no_attempts() -> None:
    async def story(bench: Bench) -> None:
        devices = tuple(
            Device(
                id=DeviceId(f"d{n}"),
                index=n,
                kind=DeviceKind.CPU,
                model="M",
                memory_mib=1024,
                health=Health.SUSPECT,
                symptoms=(Symptom.PROBE,),
            )
            for n in range(50)
        )
        bench.scheduler.tell(
            event_of(
                host_ops.HostHello,
                **bench.scheduler.now(),
                reply_to="host",
                host=HostId("h"),
                incarnation="1",
                gateway="h:1",
                devices=devices,
                epoch_seen=0,
                installed=(),
            )
        )
        await bench.replica.start()
        await asyncio.sleep(3.0)
        await bench.upload(120)
        await asyncio.sleep(10 * Budget().reconnect_s_max)
        visible, in_flight = bench.count("jobs")
        assert len(bench.scheduler.machine.state.queue.entries) == 3
        assert 3 < in_flight < 50, "a full window takes 100"
        assert visible + in_flight == 120
        assert bench.count("dlq") == (0, 0)
        assert all(job.phase in NOT_STARTED for job in bench.machine.jobs.values())
        bench.scheduler.tell(
            event_of(
                ops.SetParameter,
                **bench.scheduler.now(),
                reply_to="op",
                session=SessionId("op"),
                name="waiting_max",
                value="none",
            )
        )
        await asyncio.sleep(Budget().retry_s_max)
        assert bench.count("jobs") == (20, 100)

    played(story, parameters=Parameters(waiting_max=3))
