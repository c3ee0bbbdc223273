"""One seed, from its scenario to its verdict."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from corekit.aio.clock import LoopClock
from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.tracing.span import Tracer
from simulator.faults.checkers import Checker
from simulator.faults.preemption_checker import PreemptionChecker
from simulator.faults.scenario import Scenario, draw
from simulator.faults.services import Verdict
from simulator.faults.tenant_usage import TenantUsage
from simulator.faults.world import World


def simulate(
    seed: int,
    scenario: Scenario | None = None,
    tracer: Tracer | None = None,
    kind: type[World] = World,
) -> Verdict:
    """Run one seed to its end. Raises Violation when an invariant does not hold."""
    return run_virtual(_simulate(seed, scenario or draw(seed), tracer, kind))


async def _simulate(
    seed: int, scenario: Scenario, tracer: Tracer | None, kind: type[World]
) -> Verdict:
    checker = Checker(
        TenantUsage(scenario.parameters), preemptions=PreemptionChecker(scenario.parameters)
    )
    with TemporaryDirectory() as folder:
        return await _simulate_in(Path(folder), seed, scenario, checker, tracer, kind)


async def _simulate_in(
    folder: Path,
    seed: int,
    scenario: Scenario,
    checker: Checker,
    tracer: Tracer | None,
    kind: type[World],
) -> Verdict:
    async with Nursery("world", strict=True) as nursery:
        clock = LoopClock()
        world = kind(seed, scenario, Budget(), clock, checker, nursery, folder, tracer=tracer)
        running = asyncio.ensure_future(world.run())
        failing = asyncio.ensure_future(nursery.failed())
        try:
            done, _ = await asyncio.wait({running, failing}, return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running in done else _raise(failing)
        finally:
            running.cancel()
            failing.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await running
            await world.close()


def _raise(failing: asyncio.Future[None]) -> Verdict:
    failing.result()
    raise AssertionError("a nursery fails only with an error")
