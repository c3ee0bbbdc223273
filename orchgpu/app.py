"""Wires one orchestrator process and keeps it alive until SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from contextlib import AsyncExitStack

from corekit.aio.clock import SystemClock
from corekit.aio.environment import budget_from_environment
from corekit.aio.process import log_as_json, write_ready
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import IdSource
from orchgpu.adapters.aws.clients import AwsClients, aws_clients
from orchgpu.adapters.registry import StoreRegistry
from orchgpu.adapters.scheduler import SchedulerAdapter
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.job_timing import without_aws
from orchgpu.performer import Performer
from orchgpu.settings import OrchestratorSettings
from orchgpu.shell import Replica
from orchgpu.startup_retry import StartupRetry, Stopped
from remote_gpu.middleware import render

logger = logging.getLogger(__name__)


def run(settings: OrchestratorSettings) -> None:
    """Serve until SIGTERM or SIGINT; returns after the drain. Raises AppError at start-up."""
    log_as_json()
    asyncio.run(serve(settings, budget_from_environment()))


def state_bucket(account: str, region: str) -> str:
    """Where deploy keeps the registry of one account and region."""
    return f"orchgpu-state-{account}-{region}"


async def serve(settings: OrchestratorSettings, budget: Budget) -> None:
    """The whole life of one replica."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    replica = settings.replica or f"{socket.gethostname()}-{os.getpid()}"
    async with AsyncExitStack() as stack:
        patience = StartupRetry(stop, budget)

        async def scheduler_session() -> SchedulerAdapter:
            adapter = SchedulerAdapter.connect(settings.scheduler, replica, budget, settings.access)
            return await stack.enter_async_context(adapter)

        try:
            aws = await patience.until_done(
                "the cloud", lambda: stack.enter_async_context(aws_clients())
            )
            scheduler = await patience.until_done("the scheduler", scheduler_session)
            nursery = await stack.enter_async_context(Nursery("orchgpu"))
            shell = build(aws, scheduler, settings, budget, nursery)
            await patience.until_done("the list of deployed functions", shell.start)
        except Stopped:
            return
        gc.freeze()  # botocore's models stay: a full collection would stop every job for 30 ms
        write_ready(settings.ready_file, {"replica": replica})
        await _until(stop, nursery)
        logger.info("draining", extra={"event": "draining"})
        await shell.drain()


def build(
    aws: AwsClients,
    scheduler: SchedulerAdapter,
    settings: OrchestratorSettings,
    budget: Budget,
    nursery: Nursery,
) -> Replica:
    """One replica over real adapters."""
    clock = SystemClock()
    machine = OrchestratorMachine(
        budget=budget, session=scheduler.session, ids=IdSource(scheduler.session)
    )
    performer = Performer(
        queue=without_aws(aws.queue, clock),
        store=without_aws(aws.store, clock),
        scheduler=scheduler,
        render=render,
        clock=clock,
        budget=budget,
    )
    bucket = state_bucket(aws.account, aws.region)
    return Replica(
        machine=machine,
        performer=performer,
        queue=aws.queue,
        scheduler=scheduler,
        registry=StoreRegistry(aws.store, bucket, only=settings.functions),
        clock=clock,
        budget=budget,
        nursery=nursery,
    )


async def _until(stop: asyncio.Event, nursery: Nursery) -> None:
    """Wait for a signal, or for a failure of any loop (which is raised)."""
    stopping = asyncio.ensure_future(stop.wait())
    failing = asyncio.ensure_future(nursery.failed())
    try:
        done, _ = await asyncio.wait({stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
        if failing in done:
            failing.result()
    finally:
        stopping.cancel()
        failing.cancel()
