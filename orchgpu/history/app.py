"""Wires one consumer of the history and keeps it alive until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from corekit.aio.environment import budget_from_environment
from corekit.aio.process import log_as_json, stop_signal, write_ready
from corekit.aio.supervise import Nursery, until_first
from corekit.values import Value
from gpu_scheduler.client.access import Access
from orchgpu.history.consumer import Consumer
from orchgpu.history.store import Bounds, Store

logger = logging.getLogger(__name__)


class HistorySettings(Value):
    """The settings of one consumer."""

    http: str  #: HTTP endpoints of the schedulers, "host:port,…"
    store: Path
    bounds: Bounds
    access: Access
    ready_file: Path | None = None


def run(settings: HistorySettings) -> None:
    """Write the history until SIGTERM or SIGINT. Raises AppError."""
    log_as_json()
    with Store(settings.store, settings.bounds) as store:
        asyncio.run(serve(settings, store))


async def serve(settings: HistorySettings, store: Store) -> None:
    """The whole life of one consumer."""
    stop = stop_signal()
    consumer = Consumer(store, settings.http, settings.access, budget_from_environment())
    async with Nursery("orchgpu-collect") as nursery:
        nursery.start_loop(consumer.run, "consumer")
        write_ready(settings.ready_file, {"store": str(settings.store)})
        logger.info("writing %s", settings.store, extra={"event": "serving"})
        await until_first(stop.wait(), nursery.failed())
