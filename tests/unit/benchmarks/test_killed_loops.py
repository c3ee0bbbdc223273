"""Devices that the loops hold under kill -9."""

from __future__ import annotations

import pytest

from benchmarks.killed_loops import devices_held
from corekit.ids import AttemptId, DeviceId, HostId, LeaseId
from gpu_scheduler.model import DeviceKind, Lease, LeaseState, Share


def lease(name: str, state: LeaseState, *hosts: str, after: str = "") -> Lease:
    """A lease of the first device of each host."""
    shares = tuple(
        Share(
            host=HostId(host),
            device=DeviceId("0"),
            index=0,
            kind=DeviceKind.CPU,
            model="cpu",
            memory_mib=1,
            compute_guarantee_pct=50,
            compute_limit_pct=100,
            exclusive=False,
        )
        for host in hosts
    )
    return Lease(
        id=LeaseId(name),
        attempt=AttemptId(name),
        holder=None,
        fence=1,
        state=state,
        shares=shares,
        after=(LeaseId(after),) if after else (),
    )


RESERVED = lease("r", LeaseState.RESERVED, "a")
ACTIVE = lease("x", LeaseState.ACTIVE, "b")
ENDING = lease("e", LeaseState.ENDING, "c")
AHEAD = lease("h", LeaseState.RESERVED, "a", after="r")


@pytest.mark.parametrize(
    ("leases", "held"),
    [
        ((), 0),
        ((RESERVED, ACTIVE), 2),
        ((RESERVED, lease("s", LeaseState.ACTIVE, "a")), 1),
        ((ENDING,), 0),
        ((RESERVED, AHEAD), 1),
        ((lease("g", LeaseState.ACTIVE, "a", "b"),), 2),
    ],
)
def test_only_leases_that_have_their_devices_hold_them(
    leases: tuple[Lease, ...], held: int
) -> None:
    assert devices_held(leases) == held
