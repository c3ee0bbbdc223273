"""Everything that can happen to the scheduler, one class per thing that happened.

Every op of the scheduler protocol is one class. `at_s` is monotonic and the only clock of
deadlines; `wall_s` is written into records for people and for order across restarts. `reply_to` is
the daemon's opaque token of the request: exactly one `Reply` or `ReplyError` carries it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from corekit.ids import DeviceId, HostId, JobId, LeaseId, SessionId
from corekit.values import Value
from gpu_scheduler.model import Device, Door, EndReason, LeaseLifetime, Request, Usage
from gpu_scheduler.parameters import Given


class Happened(Value):
    """What every event knows."""

    at_s: float  #: monotonic seconds
    wall_s: float  #: seconds since 1970, for records


class EpochBegan(Happened):
    """Recovery is complete: first event of every run. Hosts and sessions have time to return."""

    run: str = ""  #: random: no two runs have it in common, whatever was copied
    build: str = ""  #: version of this ssgmd


class Ticked(Happened):
    """The moment of a `WakeAt` has come; a spurious or doubled one does no harm."""


class CapacityDeclared(Happened):
    """Configuration names devices that may register later; replaces what was declared before."""

    devices: tuple[Device, ...]


class RoomChanged(Happened):
    """The journal's disk is full, or has room again: without, nothing is granted."""

    has_room: bool


# --- requester sessions


class Asked(Happened):
    """A request of a requester session; any of them proves that the session lives."""

    session: SessionId
    reply_to: str


class SessionHello(Asked):
    """op `hello` of a requester → SessionWelcome. Also after each reconnect."""


class SessionBeat(Asked):
    """op `beat` → Done."""


class WatchAsked(Asked):
    """op `watch` → Done. With `all_leases` the session gets every push of every lease."""

    all_leases: bool
    sees_all: bool = True  #: False: of others' leases not the words of their holders


class AttemptAsked(Asked):
    """op `attempt` → AttemptAnswer | CONFLICT with details.record."""

    holder: JobId
    n: int
    revision: int
    handle: str
    block: Mapping[str, Any]
    request: Request
    wait: bool
    hold: LeaseLifetime = LeaseLifetime.SESSION  #: DEADLINE needs `request.lease_s`
    received_ago_s: float = 0.0  #: since its message was received; for a new record


class AdoptAsked(Asked):
    """op `adopt` → AdoptAnswer | CONFLICT with details.record | NOT_FOUND."""

    holder: JobId
    revision: int
    handle: str | None


class OrphansAsked(Asked):
    """op `orphans` → RecordsAnswer, longest ownerless first."""

    limit: int
    foreign: tuple[str, ...] = ()  #: not those that these keys made


class RecordAsked(Asked):
    """op `record` → RecordAnswer."""

    holder: JobId


class RecordsAsked(Asked):
    """op `records` → RecordsAnswer, newest first; the page after holder `after`."""

    limit: int
    after: JobId | None


class HandleGiven(Asked):
    """op `handle` → Done; unknown holder = success."""

    holder: JobId
    handle: str


class HandBackAsked(Asked):
    """op `hand_back` → RecordAnswer | CONFLICT with details.record | NOT_FOUND."""

    holder: JobId
    revision: int


class RenewAsked(Asked):
    """op `renew` → Done | NOT_FOUND when the lease is over | CONFLICT | INVALID."""

    lease: LeaseId
    lease_s: float | None = None  #: of a deadline lease: it ends so long from now


class StagedTold(Asked):
    """op `staged` → RecordAnswer | NOT_FOUND when the lease is over."""

    holder: JobId
    lease: LeaseId
    connect_by_s: float  #: seconds from now to the first session


class ReleaseAsked(Asked):
    """op `release` → Done; unknown lease = success."""

    lease: LeaseId
    reason: EndReason
    detail: str = ""


class ResizeAsked(Asked):
    """op `resize` → LeaseAnswer | NOT_FOUND when it is over | INVALID. The limit only."""

    lease: LeaseId
    compute_limit_pct: int


class TransferAsked(Asked):
    """op `transfer` → LeaseAnswer | NOT_FOUND when it is over | CONFLICT. Reservations only."""

    lease: LeaseId
    to: SessionId


class AttemptFailed(Asked):
    """op `fail_attempt` → RecordAnswer | CONFLICT with details.record | NOT_FOUND."""

    holder: JobId
    revision: int
    reason: str
    detail: str
    retry_at_s: float | None  #: wall clock; kept in record.times["RETRY_AT"]


class FinishAsked(Asked):
    """op `finish` → RecordAnswer; repeating it is success.

    An unknown holder gets a terminal record when `block` is given; else the answer is None.
    """

    holder: JobId
    outcome: str
    reason: str
    detail: str
    block: Mapping[str, Any] | None = None
    received_ago_s: float = 0.0  #: as in `AttemptAsked`
    committed_ago_s: float | None = None  #: since the caller saw the result


class ReopenAsked(Asked):
    """op `reopen` → RecordAnswer | CONFLICT with details.record | NOT_FOUND."""

    holder: JobId
    revision: int
    handle: str


class ReserveAsked(Asked):
    """op `reserve` → AttemptAnswer with record None. `lease_s` is needed with LeaseLifetime.DEADLINE."""

    attempt: str
    request: Request
    wait: bool
    hold: LeaseLifetime
    lease_s: float | None
    door: Door = Door.GATEWAY
    sources: tuple[str, ...] = ()


class WithdrawAsked(Asked):
    """op `withdraw` → Done | CONFLICT. A reservation nobody wants any more; unknown = success."""

    attempt: str


class ExplainAsked(Asked):
    """op `explain` → ExplainAnswer | NOT_FOUND. Exactly one of the three is given."""

    attempt: str | None = None
    holder: JobId | None = None
    request: Request | None = None
    hold: LeaseLifetime = LeaseLifetime.SESSION  #: of the lease that the request would get
    lease_s: float | None = None  #: its length, if that is not the request's own


class InventoryAsked(Asked):
    """op `inventory` → InventoryAnswer. With a limit, a page of hosts by name, after `after`."""

    after: HostId | None = None
    limit: int | None = None  #: devices; a host is not split


class LeasesAsked(Asked):
    """op `leases` → LeasesAnswer: all that are not ENDED, oldest first, above fence `after`."""

    after: int = 0
    limit: int | None = None  #: shares; a lease is not split


class QueueAsked(Asked):
    """op `queue` → QueueAnswer in the order of service, parked ones last; the first `limit`."""

    limit: int | None = None


class ParametersAsked(Asked):
    """op `parameters` → ParametersAnswer: the rules and limits that hold now."""


class SetAsked(Asked):
    """op `set` → ParametersAnswer | INVALID. One parameter changes; `parameters.NAMES`."""

    name: str
    value: Given


class DrainAsked(Asked):
    """ops `drain` and `undrain` → Done | NOT_FOUND."""

    host: HostId
    drained: bool
    device: DeviceId | None = None  #: of that host: only this one; None = the whole host
    revoke: bool = False  #: what lives there ends as REVOKED


class ForgetAsked(Asked):
    """op `forget` → Done | NOT_FOUND | CONFLICT while the host is up. Ends its leases."""

    host: HostId


# --- host sessions


class HostSaid(Happened):
    """A message of a host; any of them proves that the host lives."""

    host: HostId
    reply_to: str


class HostLeft(Happened):
    """The connection of a host ended, and no newer one of it is there."""

    host: HostId


class HostHello(HostSaid):
    """op `hello` of a host → HostWelcome | CONFLICT | INVALID.

    CONFLICT: it has seen a later epoch, or another program of this name is up.
    """

    incarnation: str
    gateway: str | None
    devices: tuple[Device, ...]
    epoch_seen: int
    installed: tuple[LeaseId, ...]
    middlewares: tuple[str, ...] = ()
    run_seen: str = ""  #: of `epoch_seen`


class InstallsAsked(HostSaid):
    """op `installs` of a host → InstallsAnswer | NOT_FOUND: the host is not known."""

    after: int
    until: int


class HostReported(HostSaid):
    """op `report` → Done | NOT_FOUND: the host is not known, it must say hello."""

    devices: tuple[Device, ...] | None  #: None: as it said last
    usage: tuple[Usage, ...]  #: of those whose figures changed


class SessionChange(StrEnum):
    """What a gateway says about the session of a lease."""

    OPENED = "opened"
    FREED = "freed"
    CLOSED = "closed"


class LeaseSessionTold(HostSaid):
    """op `session` → Done; about a lease that is over it is answered by EndOnHost."""

    lease: LeaseId
    change: SessionChange
    nonce: str
    reason: EndReason | None = None
    detail: str = ""


class DoorTold(HostSaid):
    """op `door` → Done: a lease's own port is open there; of one that is over EndOnHost says so."""

    lease: LeaseId
    address: str


class CutTold(HostSaid):
    """op `cut` → Done. A fact for people: promises never wait for it."""

    lease: LeaseId


Event = (
    EpochBegan
    | Ticked
    | CapacityDeclared
    | RoomChanged
    | SessionHello
    | SessionBeat
    | WatchAsked
    | AttemptAsked
    | AdoptAsked
    | OrphansAsked
    | RecordAsked
    | RecordsAsked
    | HandleGiven
    | HandBackAsked
    | RenewAsked
    | StagedTold
    | ReleaseAsked
    | ResizeAsked
    | TransferAsked
    | AttemptFailed
    | FinishAsked
    | ReopenAsked
    | ReserveAsked
    | WithdrawAsked
    | ExplainAsked
    | InventoryAsked
    | LeasesAsked
    | QueueAsked
    | DrainAsked
    | ForgetAsked
    | ParametersAsked
    | SetAsked
    | HostHello
    | InstallsAsked
    | HostLeft
    | HostReported
    | LeaseSessionTold
    | DoorTold
    | CutTold
)
