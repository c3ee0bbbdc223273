"""Connections of both doors: how many, of whom, for how long without a word, and how large.

`corekit.aio.admission` says who may stay; here are the clock and the closing. Both doors share one
room: nobody fills one door by way of the other.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from corekit.aio.admission import Admission, Room, source_of
from corekit.errors import AppError, ErrorCode

logger = logging.getLogger(__name__)

#: Connections of a daemon that may open enough files: each costs about 10 KiB.
CONNECTIONS_MAX = 20_000


class Guest(Protocol):
    """A connection that can be told to go."""

    def turn_away(self, error: AppError) -> None:
        """Say why, if there is a way to, and close."""
        ...

    def __hash__(self) -> int: ...


class Guests:
    """Everybody who is connected."""

    def __init__(self, room: Room, within_s: float) -> None:
        """`within_s`: how long a stranger may be one."""
        self._room = room
        self._within_s = within_s
        self._admission: Admission[Guest] = Admission(room)
        self._timers: dict[Guest, asyncio.TimerHandle] = {}

    @property
    def strangers(self) -> int:
        return self._admission.strangers

    @property
    def bytes_held(self) -> int:
        return self._admission.stranger_bytes + self._admission.member_bytes

    def arrived(self, guest: Guest, peername: Any) -> None:
        """It has connected and not said who it is."""
        address = str(peername[0]) if isinstance(peername, tuple) and peername else ""
        goes = self._admission.arrived(guest, source_of(address))
        loop = asyncio.get_running_loop()
        self._timers[guest] = loop.call_later(self._within_s, self._stays_unknown, guest)
        if goes is not None:
            text = "newer connections took its place: say who you are at once"
            self._turn_away(goes, ErrorCode.EXHAUSTED, text)

    def known(self, guest: Guest, *, host: bool = False) -> None:
        """It said who it is, and that is so. Raises EXHAUSTED when too many are connected."""
        if not self._admission.known(guest, kept=host):
            most = self._room.members_max
            text = f"too many are connected ({most}, of which some are kept for hosts); close some"
            raise AppError(ErrorCode.EXHAUSTED, text)
        if (timer := self._timers.pop(guest, None)) is not None:
            timer.cancel()

    def holds(self, guest: Guest, held: int) -> None:
        """So many bytes of an unfinished line are held for it."""
        goes = self._admission.holds(guest, held)
        if goes is not None:
            text = "too many unfinished lines are held: send whole ones"
            self._turn_away(goes, ErrorCode.EXHAUSTED, text)

    def left(self, guest: Guest) -> None:
        """Its connection is over; idempotent."""
        self._admission.left(guest)
        if (timer := self._timers.pop(guest, None)) is not None:
            timer.cancel()

    def _stays_unknown(self, guest: Guest) -> None:
        text = "no hello came; connect again and say it first"
        self._turn_away(guest, ErrorCode.TIMEOUT, text)

    def _turn_away(self, guest: Guest, code: ErrorCode, text: str) -> None:
        self.left(guest)
        logger.debug("turned away: %s", text)
        guest.turn_away(AppError(code, text))
