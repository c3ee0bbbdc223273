"""The steps that the table of leases asks for: what the parts of gpud carry out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corekit.ids import LeaseId
from gpu_scheduler.model import EndReason, Share
from gpu_scheduler.protocol.host import Install


class LeaseStepKind(StrEnum):
    """The kinds of steps, in the order of a lease's life."""

    LOAD = "load"  #: have a warm worker load for a lease ahead or a floor, then call `warm_loaded`
    EVICT = "evict"  #: kill warm workers, then call `warm_gone` for each
    PLACED = "placed"  #: log; admit a waiting session
    UNPLACED = "unplaced"  #: log: its shares are free; it waits again, ahead
    OPENED = "opened"  #: report it
    UNBOUND = "unbound"  #: the session is over, the lease is not; end session, lanes, relays
    RETURNED = "returned"  #: report it: the shares may be granted again
    KILL = "kill"  #: kill server and worker (or keep it warm), then call `gone`
    CLOSED = "closed"  #: report it with the reason; end the session
    CUT = "cut"  #: log and report it: the revocation is complete, its shares are free
    CONFLICT = "conflict"  #: log: its shares are granted to another live lease, too


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStep:
    """One step for the daemon to take."""

    kind: LeaseStepKind
    lease: LeaseId
    fence: int
    shares: tuple[Share, ...]
    nonce: str = ""
    reason: EndReason | None = None
    detail: str = ""
    reported: bool = True  #: False: the scheduler ended it itself
    #: Warm workers: to evict or load, or the one that a placed lease gets, or loses again.
    warm: tuple[str, ...] = ()
    keeps: Install | None = None  #: of KILL: its worker may stay, warm
    leaves_worker: bool = False  #: of RETURNED and CLOSED: a KILL with `keeps` follows
    succeeded: bool | None = None  #: of RETURNED and CLOSED: False = its code failed
    waited_s: float | None = None  #: of OPENED: its session waited this long for the shares
    new_sandbox: bool | None = None  #: of OPENED: its function started a sandbox; None = unknown
