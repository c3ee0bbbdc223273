"""The steps that the table of leases returns: what the daemon does, logs and reports. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corekit.ids import LeaseId
from gpu_scheduler.model import EndReason, Share
from gpu_scheduler.protocol.host import Install


class StepKind(StrEnum):
    """The kinds of steps, in the order of a lease's life."""

    EVICT = "evict"  #: kill warm workers, then call `warm_gone` for each
    PLACED = "placed"  #: log; admit a waiting session
    OPENED = "opened"  #: report it
    UNBOUND = "unbound"  #: the session is over, the lease is not; end session, lanes, relays
    RETURNED = "returned"  #: report it: the shares may be granted again
    KILL = "kill"  #: kill server and worker (or keep it warm), then call `gone`
    CLOSED = "closed"  #: report it with the reason; end the session
    CUT = "cut"  #: log and report it: the revocation is complete, its shares are free
    CONFLICT = "conflict"  #: log: its shares are granted to another live lease, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step for the daemon to take."""

    kind: StepKind
    lease: LeaseId
    fence: int
    shares: tuple[Share, ...]
    nonce: str = ""
    reason: EndReason | None = None
    detail: str = ""
    reported: bool = True  #: False: the scheduler ended it itself
    warm: tuple[str, ...] = ()  #: warm workers: to evict, or the one that a placed lease gets
    keeps: Install | None = None  #: of KILL: its worker may stay, warm
    leaves_worker: bool = False  #: of RETURNED and CLOSED: a KILL with `keeps` follows
    succeeded: bool | None = None  #: of RETURNED and CLOSED: False = its code failed
