"""The leases with a port of their own: it opens when they are placed, and closes at their end."""

from __future__ import annotations

import logging
import socket

from corekit.aio.supervise import Nursery
from gpu_scheduler.model import Door, EndReason
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.gateway.gateway import Gateway
from remote_gpu.host.gateway.lease_ports import LeasePorts, PortSettings
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.steps import Step
from remote_gpu.host.reports.link import Scheduler
from remote_gpu.wire.errors import Refused

logger = logging.getLogger(__name__)


class Doors:
    """Opens the ports of leases, and serves each by the middleware of its lease's request."""

    def __init__(
        self,
        settings: PortSettings,
        leases: Leases,
        gateway: Gateway,
        relays: Relays,
        scheduler: Scheduler,
        nursery: Nursery,
    ) -> None:
        self._leases = leases
        self._gateway = gateway
        self._relays = relays
        self._scheduler = scheduler
        self._ports = LeasePorts(settings, self._serve, nursery)

    def placed(self, step: Step) -> None:
        """Listen for a lease with a port of its own, and report the address."""
        entry = self._leases.table.find(step.lease)
        if entry is None or entry.install.door is not Door.PORT:
            return
        try:
            address = self._ports.open(entry.install)
        except OSError as error:
            detail = f"no port can be opened for the lease: {error.strerror or error}"
            about = {"event": "no_port", "lease": step.lease, "why": detail}
            logger.error("no port", extra=about)
            self._leases.end(step.lease, EndReason.REVOKED, detail)
            return
        self._scheduler.link.door(step.lease, address)

    def closed(self, step: Step) -> None:
        self._ports.close(step.lease)

    def close_all(self) -> None:
        self._ports.close_all()

    async def _serve(self, install: Install, stream: socket.socket, source: str) -> None:
        name = install.middleware or "builtin"
        if name == "builtin":
            await self._gateway.serve_port(install.lease, stream, source)
            return
        try:
            await self._relays.serve_port(install, name, stream)
        except Refused as refused:
            about = {"event": "refused", "lease": install.lease, "why": refused.message}
            logger.warning("a connection to a lease's port is refused", extra=about)
