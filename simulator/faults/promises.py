"""Promises of uploaded jobs, while faults happen: refused, kept, broken, or never used."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping

from corekit.errors import AppError
from corekit.ids import SessionId
from gpu_scheduler.model import Request
from gpu_scheduler.promises import PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import ops
from simulator.faults.scenario import Scenario
from simulator.faults.scheduler import SimScheduler

_SESSION = SessionId("promises")


async def ask_for_promises(
    scheduler: SimScheduler,
    scenario: Scenario,
    uploads: Mapping[str, str],
    stream: random.Random,
) -> None:
    """Ask for promises of uploaded jobs, each with a second step that never comes."""
    for number in range(scenario.promises):
        await asyncio.sleep(stream.uniform(0.0, 2 * scenario.upload_pause_s_max))
        uploaded = list(uploads)
        if not uploaded:
            continue
        request = Request(memory_mib=scenario.request_mib, compute_guarantee_pct=50)
        times = {"*": StepTimes(execution_s=stream.choice((0.5, 10.0, 60.0)), loading_s=1.0)}
        names = (stream.choice(uploaded), f"never-{number}")
        steps = tuple(
            PromisedStep(name=one, job=one, request=request, after=names[:i], times=times)
            for i, one in enumerate(names)
        )
        slo = Slo(latency_s=stream.choice((5.0, 60.0, 600.0)))
        with contextlib.suppress(AppError):  # it is down, or the job is promised already
            await scheduler.ask(_SESSION, ops.Admit(run=f"run-{number}", steps=steps, slo=slo))
