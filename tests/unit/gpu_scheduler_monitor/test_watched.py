"""A host that is only watched: its leases, which also end by its own clock."""

from __future__ import annotations

import asyncio

from corekit.aio.vloop import run_virtual
from corekit.ids import LeaseId
from gpu_scheduler.model import Door, EndReason, LeaseLifetime, LeaseState
from gpu_scheduler.monitor.watched import WatchedHost
from gpu_scheduler.protocol.host import Install
from tests.shares import share_of


def install(number: int, cap_s: float | None = None) -> Install:
    share = share_of(f"d{number}")
    return Install(
        lease=LeaseId(f"l{number}"),
        fence=number,
        secret="ab" * 32,
        state=LeaseState.RESERVED,
        shares=(share,),
        tenant="t",
        hold=LeaseLifetime.DEADLINE if cap_s else LeaseLifetime.SESSION,
        door=Door.PORT,
        cap_s=cap_s,
        connect_by_s=None,
    )


def test_a_lease_with_a_length_is_over_without_the_scheduler() -> None:
    async def host() -> None:
        watched = WatchedHost()
        watched.install(install(1, cap_s=10.0))
        watched.install(install(2))
        watched.install(install(3, cap_s=10.0))
        watched.link_changed(False)
        await asyncio.sleep(9.0)
        watched.install(install(3, cap_s=10.0))  # it goes on
        assert watched.installed() == ("l1", "l2", "l3")
        await asyncio.sleep(1.0)
        assert watched.installed() == ("l2", "l3")
        assert set(watched.leased()) == {"d2", "d3"}
        watched.end(LeaseId("l2"), 2, EndReason.RELEASED)
        watched.full_state((install(4),), epoch=2)
        assert watched.installed() == ("l4",)

    run_virtual(host())
