"""Wires one console and keeps it alive until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from corekit.aio.clock import SystemClock
from corekit.aio.environment import budget_from_environment
from corekit.aio.metrics_endpoint import metrics_endpoint
from corekit.aio.process import (
    fast_loop,
    log_as_json,
    raise_descriptor_limit,
    stop_signal,
    write_ready,
)
from corekit.aio.supervise import Nursery, until_first
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.addresses import is_loopback, parse_address
from gpu_scheduler.core.admission.rates import Rates
from orchgpu.adapters.calls import Lines
from orchgpu.jobs.live.feed import Feed
from orchgpu.jobs.waiting import Explanations
from orchgpu.replica.startup import StartupRetry, Stopped
from orchgpu.web.api.endpoints import Endpoints
from orchgpu.web.api.state import ApiState
from orchgpu.web.console import Console, ConsoleMetrics, ConsoleSettings
from orchgpu.web.doors import CloudDoor, SchedulerDoor
from orchgpu.web.http.live import LiveChanges
from orchgpu.web.http.server import served
from orchgpu.web.http.sessions import Sessions, Streams
from orchgpu.web.model.picture import Picture
from orchgpu.web.reader import PictureReader
from orchgpu.web.shared_answers import ActivityReader, Workloads

logger = logging.getLogger(__name__)


def run(settings: ConsoleSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises AppError at start-up."""
    log_as_json()
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(serve(settings, budget_from_environment()))


async def serve(settings: ConsoleSettings, budget: Budget) -> None:
    """The whole life of one console."""
    stop = stop_signal()
    scheduler = SchedulerDoor(address=settings.scheduler, access=settings.access, budget=budget)
    try:
        has_keys = await StartupRetry(stop, budget).until_done(
            "the scheduler", lambda: needs_keys(scheduler)
        )
    except Stopped:
        return
    async with running(settings, scheduler, has_keys) as (console, address):
        scheme = "https" if settings.tls is not None else "http"
        url = f"{scheme}://{address}/"
        async with metrics_endpoint(settings.metrics, console.metrics.lines) as scraped:
            write_ready(settings.ready_file, {"http": address, "url": url, **scraped})
            logger.info("serving at %s", url, extra={"event": "serving"})
            await until_first(stop.wait(), console.nursery.failed())


@asynccontextmanager
async def running(
    settings: ConsoleSettings, scheduler: SchedulerDoor, has_keys: bool
) -> AsyncIterator[tuple[Console, str]]:
    """A console and its address, for the length of the block. Raises INVALID, UNAVAILABLE."""
    check_listen(settings, has_keys=has_keys)
    clock, picture = SystemClock(), Picture(secrets.token_hex(4))
    sessions, streams, reader = Sessions(clock), Streams(), PictureReader(picture, clock)
    live = LiveChanges(picture, sessions, streams)
    feed = Feed(
        settings.scheduler,
        settings.events,
        on_change=reader.take,
        access=settings.access,
        budget=scheduler.budget,
        connected=False,  # a scheduler that is away is shown as that, and found again
    )
    async with Nursery("orchgpu-web") as nursery, feed, CloudDoor() as cloud, Lines() as lines:
        console = Console(
            settings=settings,
            has_keys=has_keys,
            picture=picture,
            sessions=sessions,
            live=live,
            streams=streams,
            logins=Rates(),
            api=ApiState(),
            lines=lines,
            endpoints=Endpoints(clock),
            metrics=ConsoleMetrics(picture, sessions, streams),
            scheduler=scheduler,
            cloud=cloud,
            explanations=Explanations(feed.client, clock),
            workloads=Workloads(feed.client, clock),
            activity=ActivityReader(settings.history, clock),
            feed=feed,
            nursery=nursery,
            clock=clock,
        )
        nursery.start_loop(partial(reader.run, feed), "reader")
        nursery.start_loop(live.run, "live")
        try:
            async with served(console) as address:
                yield console, address
        finally:
            await nursery.close()  # before its client closes


async def needs_keys(scheduler: SchedulerDoor) -> bool:
    """Whether the scheduler refuses clients without a key. Raises DENIED for a wrong own key."""
    try:
        await scheduler.viewer(None)
    except AppError as error:
        if error.code is not ErrorCode.DENIED:
            raise
    else:
        return False
    own = scheduler.access.current_key
    if own is None:
        text = "the scheduler needs keys: give the console one of its own (--key-file)"
        raise AppError(ErrorCode.DENIED, text, needs="key")
    await scheduler.viewer(own)
    return True


def check_listen(settings: ConsoleSettings, *, has_keys: bool) -> None:
    """Raise INVALID for an address at which sessions or the system would be unprotected."""
    host, _ = parse_address(settings.listen)
    if settings.allowed_origins and not has_keys:
        text = "--allow-origin: a page of another origin needs a key, and the scheduler has none; "
        raise invalid(f"{text}make keys with `ssgmd keys add`")
    if is_loopback(host):
        return
    if not has_keys:
        text = "the scheduler has no keys, so that every visitor would be an operator: listen on "
        text += f"loopback, not {settings.listen}, or make keys with `ssgmd keys add`"
        raise invalid(text)
    if not settings.secure_cookies:
        text = f"keys and cookies would cross the network to {settings.listen} unprotected: give "
        text += "--tls-cert and --tls-key, or --behind-tls where a proxy speaks TLS"
        raise invalid(text)
