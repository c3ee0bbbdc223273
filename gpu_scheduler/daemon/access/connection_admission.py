"""Admission of connections to both endpoints: limits on number, bytes and time.

`corekit.aio.admission` decides; this module adds timers and closes connections. Both endpoints
share the limits, so a flood cannot exceed them by using both endpoints.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from corekit.aio.admission import Admission, AdmissionLimits, source_of
from corekit.errors import AppError, ErrorCode

logger = logging.getLogger(__name__)

#: The most connections of a daemon, if it may open enough files: each costs about 10 KiB.
CONNECTIONS_MAX = 20_000


class Rejectable(Protocol):
    """A connection that can be rejected at any time."""

    def reject(self, error: AppError) -> None:
        """Send the error where that is possible, and close."""
        ...

    def __hash__(self) -> int: ...


class ConnectionAdmission:
    """Limits on all connections of the daemon."""

    def __init__(self, limits: AdmissionLimits, authenticate_s: float) -> None:
        """`authenticate_s`: longest time that a connection may stay unauthenticated."""
        self._limits = limits
        self._authenticate_s = authenticate_s
        self._admission: Admission[Rejectable] = Admission(limits)
        self._timers: dict[Rejectable, asyncio.TimerHandle] = {}

    @property
    def unauthenticated(self) -> int:
        return self._admission.unauthenticated

    @property
    def buffered_bytes(self) -> int:
        return self._admission.unauthenticated_bytes + self._admission.authenticated_bytes

    def connected(self, connection: Rejectable, peername: object) -> None:
        """Add an unauthenticated connection; another one may be rejected to make room."""
        address = str(peername[0]) if isinstance(peername, tuple) and peername else ""
        evicted = self._admission.connected(connection, source_of(address))
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(self._authenticate_s, self._expired, connection)
        if evicted is not None:
            text = "evicted for a newer connection; send the hello as soon as you are connected"
            self._reject(evicted, ErrorCode.EXHAUSTED, text)

    def authenticated(self, connection: Rejectable, *, host: bool = False) -> None:
        """Mark a connection authenticated. Raises EXHAUSTED when too many are connected."""
        if not self._admission.authenticate(connection, reserved=host):
            most = self._limits.authenticated_max
            text = f"too many connections ({most}, some of them reserved for hosts); close some"
            raise AppError(ErrorCode.EXHAUSTED, text)
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def buffered(self, connection: Rejectable, size: int) -> None:
        """Set the bytes of an unfinished line; a connection may be rejected to make room."""
        evicted = self._admission.buffers(connection, size)
        if evicted is not None:
            text = "too many bytes of unfinished lines are buffered; send whole lines"
            self._reject(evicted, ErrorCode.EXHAUSTED, text)

    def disconnected(self, connection: Rejectable) -> None:
        """Remove a connection that has ended. Idempotent."""
        self._admission.disconnected(connection)
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def _expired(self, connection: Rejectable) -> None:
        text = "no hello arrived in time; connect again and send the hello first"
        self._reject(connection, ErrorCode.TIMEOUT, text)

    def _reject(self, connection: Rejectable, code: ErrorCode, text: str) -> None:
        self.disconnected(connection)
        logger.debug("rejected: %s", text)
        connection.reject(AppError(code, text))
