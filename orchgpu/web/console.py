"""The parts of one running console, which its routes use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery
from gpu_scheduler.core.admission.rates import Rates
from orchgpu.jobs.live.feed import Feed
from orchgpu.jobs.waiting import Explanations
from orchgpu.web.doors import CloudDoor, SchedulerDoor
from orchgpu.web.http.assets import Asset
from orchgpu.web.http.live import LiveChanges
from orchgpu.web.http.sessions import Sessions, Streams
from orchgpu.web.metrics import ConsoleMetrics
from orchgpu.web.model.picture import Picture
from orchgpu.web.settings import ConsoleSettings
from orchgpu.web.shared_answers import ActivityReader, Workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Everything that lives as long as the server."""

    settings: ConsoleSettings
    has_keys: bool  #: of the scheduler: browsers must log in
    picture: Picture
    sessions: Sessions
    streams: Streams
    live: LiveChanges
    logins: Rates
    metrics: ConsoleMetrics
    scheduler: SchedulerDoor
    cloud: CloudDoor
    explanations: Explanations
    workloads: Workloads
    activity: ActivityReader
    feed: Feed
    nursery: Nursery
    assets: Mapping[str, Asset]
    clock: Clock


CONSOLE = web.AppKey("console", Console)
