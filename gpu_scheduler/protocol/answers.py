"""Answers and pushes to requester sessions. All lengths of time are relative: no clock is shared.

The core makes these very values; the daemon adds only the secrets of granted leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from corekit.ids import AttemptId, HostId, JobId, LeaseId, SessionId
from corekit.values import Value, field
from gpu_scheduler.model import (
    Device,
    EndReason,
    Explanation,
    GrantedLease,
    HostState,
    Lease,
    LeaseState,
    Record,
    Request,
    Usage,
)
from gpu_scheduler.parameters import Parameters


class Outcome(StrEnum):
    """How an attempt was answered."""

    GRANTED = "granted"
    WAITING = "waiting"
    BUSY = "busy"
    IMPOSSIBLE = "impossible"


# --- answers


class Done(Value):
    """`{}`: done, or it was already so."""


class SessionWelcome(Value):
    """Answer of a requester's `hello`."""

    epoch: int
    now_s: float  #: wall clock


class AttemptAnswer(Value):
    """Exactly one of `granted` and `explanation` is there; `record` is None for `reserve`."""

    outcome: Outcome
    granted: GrantedLease | None = None
    explanation: Explanation | None = None
    record: Record | None = None


class AdoptAnswer(Value):
    """An adopted record, and its live lease."""

    record: Record
    granted: GrantedLease | None  #: None: no live lease (record.reason gives the reason)


class RecordAnswer(Value):
    """One job record as it is now."""

    record: Record | None


class RecordsAnswer(Value):
    """A page of job records."""

    records: tuple[Record, ...]  #: fewer than asked for where a message has no room for more


class ExplainAnswer(Value):
    """The state of a request, and why."""

    outcome: Outcome  #: the present one; for a dry run, what would be answered
    explanation: Explanation


class DeviceView(Value):
    """One device with what is promised of it."""

    device: Device
    memory_free_mib: int
    compute_free_pct: int
    leases: tuple[LeaseId, ...]
    usage: Usage | None
    drained: bool = False  #: this device alone; see also the state of its host


class HostView(Value):
    """One host with its devices."""

    host: HostId
    state: HostState
    gateway: str | None
    incarnation: str
    silent_s: float  #: since its last message
    devices: tuple[DeviceView, ...]
    middlewares: tuple[str, ...] = ()  #: that requests may name


class InventoryAnswer(Value):
    """A page of hosts by name."""

    hosts: tuple[HostView, ...]
    declared: tuple[Device, ...] = ()  #: on the first page
    declared_left_out: int = 0
    more: bool = False  #: hosts after the last of these


class LeasesAnswer(Value):
    """A page of live leases by fence."""

    leases: tuple[Lease, ...]
    ends_in_s: Mapping[LeaseId, float] = field(
        default_factory=dict
    )  #: lease → at most; see its state
    more: bool = False  #: leases above the fence of the last of these


class LeaseAnswer(Value):
    """One lease as it is now."""

    lease: Lease


class QueuedView(Value):
    """One waiting request."""

    attempt: AttemptId
    holder: JobId | None
    request: Request
    position: int | None  #: 1 = next; None = ownerless
    waiting_since_s: float  #: wall clock
    session: SessionId | None


class QueueAnswer(Value):
    """The first waiting requests in the order of service."""

    queue: tuple[QueuedView, ...]
    left_out: int = 0  #: behind these


class ParametersAnswer(Value):
    """The rules and limits that hold now."""

    parameters: Parameters
    overridden: tuple[str, ...]  #: names that were set since the daemon was configured


# --- pushes


class GrantedPush(Value):
    """Push `granted`: a waiting request got its lease; `renew` it within `accept_s`."""

    holder: JobId | None
    attempt: AttemptId
    granted: GrantedLease


class ImpossiblePush(Value):
    """Push `impossible`: the inventory shrank, the request is withdrawn."""

    holder: JobId | None
    attempt: AttemptId
    explanation: Explanation


class BusyPush(Value):
    """Push `busy`: it waited max_wait_s, the request is withdrawn."""

    holder: JobId | None
    attempt: AttemptId
    explanation: Explanation


class LeasePush(Value):
    """Push `lease`: a lease changed its state."""

    holder: JobId | None
    attempt: AttemptId
    lease: LeaseId
    state: LeaseState
    reason: EndReason | None
    detail: str
    device: str  #: of its first share, for people: "host/index kind model"


class HandlePush(Value):
    """Push `handle`: another session received the same message again."""

    holder: JobId
    handle: str


class DisownedPush(Value):
    """Push `disowned`: the session does not own this record any more."""

    holder: JobId


Push = GrantedPush | ImpossiblePush | BusyPush | LeasePush | HandlePush | DisownedPush

#: Wire name → class of every push.
PUSHES: Mapping[str, type[Push]] = {
    "granted": GrantedPush,
    "impossible": ImpossiblePush,
    "busy": BusyPush,
    "lease": LeasePush,
    "handle": HandlePush,
    "disowned": DisownedPush,
}

#: The inverse, for the daemon.
PUSH_NAMES: Mapping[type[Value], str] = {cls: name for name, cls in PUSHES.items()}
