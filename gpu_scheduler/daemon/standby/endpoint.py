"""The socket endpoint of a standby: every request is answered with the leader's address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from corekit.errors import AppError
from gpu_scheduler.daemon.access.authorizer import Authorizer
from gpu_scheduler.daemon.access.connection_admission import ConnectionAdmission
from gpu_scheduler.daemon.standby.follower import StandbyStatus, standby_error
from gpu_scheduler.protocol.codec import BrokenFrame, LineBuffer, error_line, read_request
from gpu_scheduler.protocol.host import JOIN_OPS


class Entrance:
    """Makes the protocols of new connections: a standby's, and after the take-over the leader's."""

    def __init__(self) -> None:
        self.connection: Callable[[], asyncio.Protocol] = asyncio.Protocol

    def __call__(self) -> asyncio.Protocol:
        return self.connection()

    def refuse(
        self,
        status: Callable[[], StandbyStatus],
        authorizer: Authorizer,
        admission: ConnectionAdmission,
    ) -> None:
        """Answer new connections as a standby."""
        self.connection = lambda: StandbyConnection(status, authorizer, admission)


class StandbyConnection(asyncio.Protocol):
    """A connection that is answered once, and closed: its peer goes to the leader."""

    def __init__(
        self,
        status: Callable[[], StandbyStatus],
        authorizer: Authorizer,
        admission: ConnectionAdmission,
    ) -> None:
        self._status = status
        self._authorizer = authorizer
        self._admission = admission
        self._lines = LineBuffer()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class
        self._admission.connected(self, transport.get_extra_info("peername"))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._admission.disconnected(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            lines = self._lines.feed(data)
            self._admission.buffered(self, self._lines.held)
            for line in lines[:1]:
                self._answer(line)
        except AppError as error:
            self.reject(error)

    def _answer(self, line: bytes) -> None:
        try:
            request = read_request(line)
        except BrokenFrame:
            raise
        except AppError as error:
            return self._send(error.details.get("id"), error)
        if request.op not in JOIN_OPS or self._authorizer.join is None:
            try:
                self._authorizer.caller(request.body.without("key")[0].get("key"))
            except AppError as error:
                return self._send(request.id, error)
        return self._send(request.id, standby_error(self._status()))

    def reject(self, error: AppError) -> None:
        """`Rejectable`."""
        self._send(None, error)

    def _send(self, id_: int | None, error: AppError) -> None:
        if self._transport is not None:
            self._transport.write(error_line(id_, error))
            self._transport.close()
