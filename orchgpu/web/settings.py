"""The settings of the console's server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from gpu_scheduler.client.access import Access


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Everything `orchgpu.web.app.run` needs. Endpoints of the cloud come from the environment."""

    scheduler: str  #: "address:port" of ssgmd's socket endpoint, and those of its standbys
    listen: str  #: "address:port"; port 0 = any free one
    access: Access = field(default_factory=Access)  #: to the scheduler, for the shared picture
    tls: ssl.SSLContext | None = None
    behind_tls: bool = False  #: a proxy in front of it speaks TLS with the browsers
    allowed_hosts: tuple[str, ...] = ()  #: more host names of it, where the scheduler has no keys
    history: Path | None = None  #: file of the history, which `orchgpu collect` writes
    metrics: str | None = None  #: "address:port" of /metrics, without a key; None: none
    ready_file: Path | None = None  #: written once it serves: {"pid", "http"}

    @property
    def secure_cookies(self) -> bool:
        return self.tls is not None or self.behind_tls
