"""Wires one orchestrator process and keeps it alive until SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from contextlib import AsyncExitStack
from functools import partial

from corekit.aio.clock import SystemClock
from corekit.aio.environment import budget_from_environment
from corekit.aio.metrics_endpoint import metrics_endpoint
from corekit.aio.process import log_as_json, stop_signal, write_ready
from corekit.aio.supervise import Nursery, until_first
from corekit.budget import Budget
from corekit.ids import IdSource
from corekit.tracing.setup import tracer_from
from corekit.values import replace
from orchgpu.adapters.clouds import open_cloud
from orchgpu.adapters.hosts import GatewayRuns
from orchgpu.adapters.registry import StoreRegistry
from orchgpu.adapters.scheduler import SchedulerAdapter
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.ports import CloudPorts
from orchgpu.replica.acting import tolerated
from orchgpu.replica.loops import Replica
from orchgpu.replica.startup import OrchestratorSettings, StartupRetry, Stopped
from remote_gpu.middleware import render

logger = logging.getLogger(__name__)

#: Functions that wait for their device take this part of the account's free concurrency at most:
#: the rest is for functions whose device is free.
AHEAD_PART = 4
ACCOUNT_EVERY_S = 3600.0
ACCOUNT_RETRY_S = 60.0  #: after a failure: until the first success there is no limit


def run(settings: OrchestratorSettings) -> None:
    """Serve until SIGTERM or SIGINT; returns after the drain. Raises AppError at start-up."""
    log_as_json()
    budget = budget_from_environment()
    if settings.search_every_s is not None:
        budget = searching_every(budget, settings.search_every_s)
    asyncio.run(serve(settings, budget))


def searching_every(budget: Budget, every_s: float) -> Budget:
    """The budget with searches that often; without events no upload waits longer for one."""
    age_s = min(budget.reconcile_age_s, every_s)
    return replace(budget, reconcile_every_s=every_s, reconcile_age_s=age_s).check()


async def serve(settings: OrchestratorSettings, budget: Budget) -> None:
    stop = stop_signal()
    replica = settings.replica or f"{socket.gethostname()}-{os.getpid()}"
    async with AsyncExitStack() as stack:
        retry = StartupRetry(stop, budget)

        async def scheduler_session() -> SchedulerAdapter:
            adapter = SchedulerAdapter.connect(settings.scheduler, replica, budget, settings.access)
            return await stack.enter_async_context(adapter)

        try:
            cloud = await retry.until_done(
                "the cloud", lambda: stack.enter_async_context(open_cloud(settings.cloud))
            )
            scheduler = await retry.until_done("the scheduler", scheduler_session)
            nursery = await stack.enter_async_context(Nursery("orchgpu"))
            tracer = tracer_from(os.environ, "orchgpu-orchestrator")
            if tracer.enabled:
                stack.push_async_callback(asyncio.to_thread, tracer.close)
            ids = IdSource(scheduler.session)
            shell = Replica(
                machine=OrchestratorMachine(budget=budget, session=scheduler.session, ids=ids),
                queue=cloud.queue,
                store=cloud.store,
                functions=cloud.functions,
                runs=stack.enter_context(GatewayRuns()),
                credentials=cloud.credentials,
                batch=cloud.batch,
                scheduler=scheduler,
                registry=StoreRegistry(cloud.store, cloud.state_bucket, only=settings.functions),
                render=render,
                clock=SystemClock(),
                budget=budget,
                nursery=nursery,
                jitter=ids.stream("reconcile"),
                tracer=tracer,
                notices=cloud.notices,
            )
            if cloud.account:  # clouds of other packages may name none
                nursery.start_loop(partial(report_account, cloud, scheduler), "account")
            addresses = dict(
                await stack.enter_async_context(
                    metrics_endpoint(settings.metrics, shell.metrics.lines)
                )
            )
            if cloud.events is not None:
                addresses.update(await stack.enter_async_context(cloud.events()))
            await retry.until_done("the list of deployed functions", shell.start)
        except Stopped:
            return
        gc.freeze()  # botocore's models stay: a full collection would stop every job for 30 ms
        if settings.metrics or settings.emf:
            shell.start_metrics(emf=settings.emf)
        write_ready(settings.ready_file, {"replica": replica, **addresses})
        await until_first(stop.wait(), nursery.failed())
        logger.info("draining", extra={"event": "draining"})
        await shell.drain()


async def report_account(cloud: CloudPorts, scheduler: SchedulerAdapter) -> None:
    """Keep the scheduler's limit for functions that wait ahead that of the account.

    Without the permission there is no limit, and the log shows it.
    """
    scheduler.report_account(cloud.account, None)
    while True:
        unreserved = await tolerated(cloud.functions.unreserved())
        if unreserved is not None:
            ahead_max = unreserved // AHEAD_PART
            about = "at most %d functions wait ahead of their devices, of %d at a time in %s"
            logger.info(about, ahead_max, unreserved, cloud.account, extra={"event": "account"})
            scheduler.report_account(cloud.account, ahead_max)
        await asyncio.sleep(ACCOUNT_RETRY_S if unreserved is None else ACCOUNT_EVERY_S)
