"""The ways of an authenticated connection: a lane of its worker, or a relay to its server."""

from __future__ import annotations

import asyncio
import socket

from corekit.errors import AppError
from remote_gpu.host.gateway.frames import Peer
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.table import Entry
from remote_gpu.host.reports.traces import HostTraces
from remote_gpu.host.workers.lease_workers import CRASHES_MAX, LeaseWorkers
from remote_gpu.wire.errors import Refusal, Refused

LANES_MAX = 16  #: open at once on one lease; each is a thread in its worker


class Lanes:
    """The ways from the gateway to the leases' processes."""

    def __init__(
        self, leases: Leases, workers: LeaseWorkers, relays: Relays, traces: HostTraces
    ) -> None:
        self._leases = leases
        self._workers = workers
        self.relays = relays
        self._traces = traces

    async def hand_over(self, entry: Entry, device: int, stream: socket.socket, key: bytes) -> None:
        """Give an authenticated lane to the lease's worker; the first lane starts the worker.

        With a `key` the worker continues in TLS and sends the welcome there. A worker that dies
        before it took the lane is replaced: none of the lane's calls was served. Raises Refused.
        """
        kind = next(share.kind for share in entry.install.shares if share.index == device)
        session = entry.nonce
        ended = Refused(Refusal.ENDED, f"lease {entry.lease} or its session is over")

        def is_current() -> bool:
            return self._leases.table.find(entry.lease) is entry and entry.nonce == session

        self._traces.worker_asked(entry.lease)
        for _ in range(CRASHES_MAX):
            if not is_current():  # no step would end its worker
                raise ended
            worker = await asyncio.shield(self._workers.of(entry))
            if not is_current() or entry.lease not in self._workers:
                raise ended
            if worker is None:
                raise Refused(Refusal.NOT_READY, "no worker can be started on this host")
            if worker.lanes >= LANES_MAX:
                raise Refused(Refusal.BUSY, f"a lease has at most {LANES_MAX} lanes")
            try:
                taken = await worker.lane(stream, device, kind, key)
            except AppError as error:
                raise Refused(Refusal.NOT_READY, error.message) from None
            if taken:
                self._traces.worker_ready(entry.lease)
                Peer(stream).send_now({"tls": {}} if key else {"welcome": {}})
                return
            self._workers.gone(entry, worker)  # its own callback may be a moment behind
        raise Refused(Refusal.NOT_READY, "workers of this lease die at startup; see gpud's log")
