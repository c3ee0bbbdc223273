"""One installed lease in a host's table, and its phases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corekit.ids import LeaseId
from gpu_scheduler.model import LeaseLifetime
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.warm.table import WarmWorker


class LeasePhase(StrEnum):
    QUEUED = "QUEUED"  #: installed, but older leases still occupy its shares, or it is ahead
    PLACED = "PLACED"  #: the lease occupies its shares; no session yet
    OPEN = "OPEN"
    RETURNED = "RETURNED"  #: given back; the session is still open
    CLOSING = "CLOSING"  #: over; its processes may not have ended yet


@dataclass(slots=True, kw_only=True)
class InstalledLease:
    """One installed lease."""

    install: Install
    phase: LeasePhase = LeasePhase.QUEUED
    occupying: bool = False
    stuck: bool = False  #: one of its processes cannot be killed, or its memory is not freed
    warm: WarmWorker | None = None  #: that it got when it was placed
    nonce: str = ""  #: nonce of the session that holds the lease
    booked_at_s: float | None = None  #: monotonic; None: it is ahead, or was not when it came
    connect_by_s: float | None = None  #: monotonic deadlines; None = none
    ends_at_s: float | None = None  #: end of a deadline lease
    cap_at_s: float | None = None  #: maximum end of the session
    heard_at_s: float | None = None  #: time of the session's last message

    @property
    def lease(self) -> LeaseId:
        return self.install.lease

    @property
    def waits(self) -> bool:
        """True while older leases occupy shares that are booked for it."""
        return self.phase is LeasePhase.QUEUED and not self.install.ahead

    @property
    def held_by_session(self) -> bool:
        return self.install.hold is LeaseLifetime.SESSION

    @property
    def last_s(self) -> float | None:
        """The latest end of its work; a deadline lease's is independent of its sessions."""
        return self.cap_at_s if self.held_by_session else self.ends_at_s
