"""Hub of the event stream: what each reader may read of a pool."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from corekit.aio.clock import LoopClock
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.ids import HostId, IdSource, SessionId
from corekit.values import replace
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.access.authorizer import NOBODY, TRUSTED, Authorizer, Caller
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.daemon.access.secret import LeaseSecrets
from gpu_scheduler.daemon.endpoints.connections import ConnectionRegistry
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.daemon.events.hub import LOOK_S, Hub
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.changes import Entry, HostForgotten
from tests.unit.gpu_scheduler_core.views.test_pools import POOL
from tests.unit.gpu_scheduler_daemon.test_socket_endpoint import Room


@pytest.mark.parametrize(("caller", "usd_per_h"), [(NOBODY, 0.0), (TRUSTED, 1.25)])
def test_the_price_of_a_pool_is_for_operators(
    tmp_path: Path, caller: Caller, usd_per_h: float
) -> None:
    state = SchedulerMachine(Budget(), IdSource("t"), Parameters(), installed_policies()).state
    authorizer = Authorizer(tmp_path / "keys", lambda _: None, lambda _: None, lambda _: None)
    metrics, redaction = Metrics(), Redaction(authorizer)

    def report(hosts: int) -> None:
        pool = replace(POOL, usd_per_h=1.25, states={"busy": hosts})
        state.fleets.put(SessionId("fleet"), ops.ReportFleet(pools=(pool,)), 0.0, 60.0)

    async def main() -> list[tuple[int, float]]:
        clock = LoopClock()
        decoder = RequestDecoder(clock, Room(), lambda _: None, metrics, authorizer)
        registry = ConnectionRegistry(LeaseSecrets(bytes(32)), metrics, redaction)
        hub, seen = Hub(state, clock, decoder, registry, redaction), []
        report(1)
        with hub.subscribed(caller) as subscriber:
            report(2)
            hub.changed([Entry(parts=(HostForgotten(host=HostId("h")),))])
            await asyncio.sleep(2 * LOOK_S)
            hub.end_all("the test ends")
            async for portion in subscriber.portions():
                seen += [json.loads(line.text) for line in portion]
        return [(one["hosts"], one["usd_per_h"]) for one in seen if one["event"] == "pool"]

    assert run_virtual(main()) == [(1, usd_per_h), (2, usd_per_h)]
