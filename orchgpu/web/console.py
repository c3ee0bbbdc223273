"""The settings, the metrics and the parts of one running console, which its routes use."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode, invalid
from corekit.metrics import family, single
from gpu_scheduler.client.access import Access
from gpu_scheduler.core.admission.rates import Rates
from orchgpu.adapters.calls import Lines
from orchgpu.core.runs.facts import Facts
from orchgpu.jobs.live.feed import Feed
from orchgpu.jobs.waiting import Explanations
from orchgpu.web.api.endpoints import Endpoints
from orchgpu.web.api.state import ApiState
from orchgpu.web.doors import CloudDoor, SchedulerDoor
from orchgpu.web.http.live import LiveChanges
from orchgpu.web.http.sessions import Sessions, Streams
from orchgpu.web.model.picture import Picture
from orchgpu.web.shared_answers import ActivityReader, Workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Everything `orchgpu.web.app.run` needs. Endpoints of the cloud come from the environment."""

    scheduler: str  #: "address:port" of ssgmd's socket endpoint, and those of its standbys
    listen: str  #: "address:port"; port 0 = any free one
    events: str | None = None  #: its HTTP endpoints, whose event stream costs both sides less
    access: Access = field(default_factory=Access)  #: to the scheduler, for the shared picture
    tls: ssl.SSLContext | None = None
    behind_tls: bool = False  #: a proxy in front of it speaks TLS with the browsers
    allowed_hosts: tuple[str, ...] = ()  #: more host names of it, where the scheduler has no keys
    allowed_origins: tuple[str, ...] = ()  #: whose pages may call the API with a key of their own
    history: Path | None = None  #: file of the history, which `orchgpu collect` writes
    metrics: str | None = None  #: "address:port" of /metrics, without a key; None: none
    ready_file: Path | None = None  #: written once it serves: {"pid", "http"}

    @property
    def secure_cookies(self) -> bool:
        return self.tls is not None or self.behind_tls


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and newer, which browsers speak.

    Raises INVALID for unusable files, DENIED for a private key that everyone may read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        mode = key.stat().st_mode & 0o777
        if mode & 0o007:
            text = f"{key} is world-readable (mode {mode:o}); run: chmod o= {key}"
            raise AppError(ErrorCode.DENIED, text)
        # an encrypted key would prompt for its passphrase: an empty one refuses it
        context.load_cert_chain(cert, key, password="")
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or "they are not a matching certificate and key in PEM format"
        raise invalid(f"cannot use {cert} and {key} for TLS: {reason}") from None
    return context


@dataclass(slots=True)
class ConsoleMetrics:
    """Counts since the start, and what is open now."""

    picture: Picture
    sessions: Sessions
    streams: Streams
    requests: Counter[int] = field(default_factory=Counter)  #: by status

    def lines(self) -> Iterator[str]:
        self.sessions.drop_ended()
        yield from single("orchgpu_console_sessions", len(self.sessions))
        yield from single("orchgpu_console_streams", len(self.streams))
        yield from single("orchgpu_console_batches_total", self.picture.batches.number)
        counted = sorted(self.requests.items())
        samples = (((str(status),), float(count)) for status, count in counted)
        yield from family("orchgpu_console_requests_total", samples)
        yield from single("orchgpu_console_scheduler_connected", int(self.picture.connected))


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
    api: ApiState
    endpoints: Endpoints
    lines: Lines  #: to the runs of endpoints
    metrics: ConsoleMetrics
    scheduler: SchedulerDoor
    cloud: CloudDoor
    explanations: Explanations
    workloads: Workloads
    activity: ActivityReader
    feed: Feed
    nursery: Nursery
    clock: Clock
    #: The newest facts of runs that browsers look at: what cannot change is not read again.
    run_facts: dict[str, Facts] = field(default_factory=dict)


CONSOLE = web.AppKey("console", Console)
