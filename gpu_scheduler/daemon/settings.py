"""The settings of one run of ssgmd, and whether they fit together."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from corekit.budget import Budget
from corekit.errors import invalid
from corekit.net.addresses import parse_address
from gpu_scheduler.daemon.access.sources import SecretSource
from gpu_scheduler.daemon.access.tls import Certificate
from gpu_scheduler.daemon.log.port import LogAddress
from gpu_scheduler.daemon.waker import Sender
from gpu_scheduler.model import Device
from gpu_scheduler.parameters import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """Settings of one run of `ssgmd`."""

    state: Path  #: folder of journal, lock and key; created when absent
    budget: Budget
    log: LogAddress | None = None  #: of the journal; None: in the state folder
    listen: str = "127.0.0.1:0"  #: address of the socket endpoint
    http: str = "127.0.0.1:0"  #: address of the HTTP endpoint
    advertise: str | None = None  #: of the socket endpoint, for clients; None: `listen`
    advertise_http: str | None = None  #: of the HTTP endpoint; None: `http`
    standby: bool = False  #: follows the log, and takes over when its writer is silent
    capacity: tuple[Device, ...] | None = None  #: devices that may register later
    parameters: Parameters = field(default_factory=Parameters)  #: without overrides of `ssgm set`
    #: None: `keys.json` in the state folder, if it exists.
    keys: SecretSource | None = None
    join_iam: Path | None = None  #: roles whose holders may join as hosts
    #: None: a file in the state folder, made for a new one.
    master_key: SecretSource | None = None
    certificate: Certificate | None = None  #: of both endpoints; None: no TLS
    wake: Sender | None = None  #: of wake-ups; None: orchestrators may not leave their jobs
    descriptors: int | None = None  #: files it may open; None: as many as the system permits

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self.certificate is None else self.certificate.context

    def check(self) -> None:
        """Raise INVALID for addresses or settings that do not fit together."""
        for address in (self.listen, self.http, self.advertise, self.advertise_http):
            if address is not None:
                parse_address(address)
        if not self.standby:
            return
        if self.log is None:
            text = "--standby needs a log that several machines reach, such as --log postgres://…"
            raise invalid(text)
        for name, address in (("listen", self.listen), ("http", self.http)):
            if parse_address(address)[1] == 0:
                raise invalid(f"--standby needs a fixed port in --{name}: clients know it")
