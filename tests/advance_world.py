"""A world whose jobs take leases ahead: `w` executes for 10 s, its functions start in 2 s."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.model import (
    Advance,
    Device,
    EndReason,
    Lease,
    Request,
    Sharing,
    Step,
)
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World, device

EXECUTION_S, START_S = 10.0, 2.0
TERMS = Advance(wait_s=20.0, late_pct=10.0)
WHOLE = Request(sharing=Sharing.EXCLUSIVE, workload="w", advance=TERMS)


def learned(*devices: Device, **parameters: Any) -> World:
    """A world that has learned the times of `w` on model M, and is free."""
    world = World(**parameters)
    world.host("h", *(devices or (device("d"),)), advance=True)
    world.alive["s1"] = None
    for number in range(3):
        lease = started(world, f"past{number}")
        finished(world, lease, f"past{number}")
    return world


def asked(world: World, job: str, request: Request = WHOLE, n: int = 1, session: str = "s1") -> Any:
    known = world.machine.state.records
    revision = world.record(job).revision if job in known else 0
    return world.attempt(job, n=n, revision=revision, request=request, session=session)


def started(
    world: World,
    job: str,
    request: Request = WHOLE,
    start_s: float = START_S,
    new_sandbox: bool | None = None,
) -> Lease:
    """A job whose lease is granted at once, and whose session opens after its start."""
    answer = asked(world, job, request)
    assert answer.outcome is answers.Outcome.GRANTED, answer
    lease: Lease = answer.granted.lease
    world.staged(lease)
    world.advance(start_s)
    world.told("h", lease, "opened", waited_s=0.0, new_sandbox=new_sandbox)
    return lease


def finished(world: World, lease: Lease, job: str, after_s: float = EXECUTION_S) -> list[Any]:
    """Its device is given back, and its session closes; returns the actions of the first."""
    world.advance(after_s)
    seen = world.told("h", lease, "freed", loading_s=0.0, succeeded=True)
    actions = list(seen)
    world.told("h", lease, "closed", reason=EndReason.DONE)
    world.ask(ops.Finish, holder=job, outcome="SUCCEEDED", reason="NONE")
    world.actions = actions
    return actions


def lease_of(world: World, job: str) -> Lease:
    entry = world.machine.state.live_lease(world.record(job))
    assert entry is not None, f"{job} has no lease"
    return entry.lease


def step(world: World, job: str) -> Step:
    return world.record(job).step


def installs(world: World) -> list[tuple[str, bool]]:
    return [(push.install.lease, push.install.ahead) for push in world.pushed(host_ops.InstallPush)]


def ahead_of(world: World, first: str = "first", second: str = "second") -> tuple[Lease, Lease]:
    """A running lease, and one granted ahead of its end and staged."""
    running = started(world, first)
    asked(world, second)
    world.advance(EXECUTION_S - START_S)
    ahead = lease_of(world, second)
    world.renew(ahead)
    world.staged(ahead)
    return running, lease_of(world, second)
