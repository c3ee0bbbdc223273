"""What the scheduler asks the daemon to do. Actions of one decision are performed in their order.

Values named `…Answer`, `…Welcome` and `…Push` encode (`corekit.decode.encode`) to the JSON of the
scheduler protocol, but for secrets: the daemon turns `Granted` into `GrantedLease` and adds the
secret to `Install`. All lengths of time are relative seconds: no clock is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from corekit.errors import ErrorCode
from corekit.ids import HostId, JobId, LeaseId, SessionId
from corekit.values import Value, field
from gpu_scheduler.model import (
    Device,
    Door,
    EndReason,
    Explanation,
    HostState,
    Lease,
    LeaseLifetime,
    LeaseState,
    Record,
    Request,
    Share,
    Usage,
)
from gpu_scheduler.parameters import Parameters


class Outcome(StrEnum):
    """How an attempt was answered."""

    GRANTED = "granted"
    WAITING = "waiting"
    BUSY = "busy"
    IMPOSSIBLE = "impossible"


class Granted(Value):
    """A lease for its holder, without secrets: those are the daemon's."""

    lease: Lease
    epoch: int
    gateways: Mapping[str, str]  #: host id → "address:port"; advisory hosts have none


class Install(Value):
    """A lease as one host must know it, without its secret."""

    lease: LeaseId
    fence: int
    state: LeaseState  #: ENDING: the session goes on, its shares are given back
    shares: tuple[Share, ...]  #: on this host only
    tenant: str
    hold: LeaseLifetime
    door: Door
    sources: tuple[str, ...]  #: Door.PORT: networks whose machines may connect
    middleware: str | None  #: that its holder named
    cap_s: float | None  #: a deadline lease ends this long from now
    connect_by_s: float | None  #: staged: the first session must come this long from now


# --- answers


class Done(Value):
    """`{}`: done, or it was already so."""


class SessionWelcome(Value):
    epoch: int
    now_s: float  #: wall clock


class HostWelcome(Value):
    """The full state of one host; what is not in it, the host cuts."""

    epoch: int
    run: str
    installs: tuple[Install, ...]


class InstallsAnswer(Value):
    """A page of a full state that was too long for one message."""

    installs: tuple[Install, ...]
    more: bool


class AttemptAnswer(Value):
    """Exactly one of `granted` and `explanation` is there; `record` is None for `reserve`."""

    outcome: Outcome
    granted: Granted | None = None
    explanation: Explanation | None = None
    record: Record | None = None


class AdoptAnswer(Value):
    record: Record
    granted: Granted | None  #: None: no live lease (record.reason says why it ended)


class RecordAnswer(Value):
    record: Record | None


class RecordsAnswer(Value):
    records: tuple[Record, ...]  #: fewer than asked for where a message has no room for more


class ExplainAnswer(Value):
    outcome: Outcome  #: what stands; for a dry run, what would be answered
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
    host: HostId
    state: HostState
    gateway: str | None
    incarnation: str
    silent_s: float  #: since its last message
    devices: tuple[DeviceView, ...]
    middlewares: tuple[str, ...] = ()  #: that requests may name


class InventoryAnswer(Value):
    hosts: tuple[HostView, ...]
    declared: tuple[Device, ...] = ()  #: on the first page
    declared_left_out: int = 0
    more: bool = False  #: hosts after the last of these


class LeasesAnswer(Value):
    leases: tuple[Lease, ...]
    ends_in_s: Mapping[str, float] = field(default_factory=dict)  #: lease → at most; see its state
    more: bool = False  #: leases above the fence of the last of these


class LeaseAnswer(Value):
    """One lease as it is now."""

    lease: Lease


class QueuedView(Value):
    """One waiting request."""

    attempt: str
    holder: JobId | None
    request: Request
    position: int | None  #: 1 = next; None = parked
    waiting_since_s: float  #: wall clock
    session: SessionId | None


class QueueAnswer(Value):
    queue: tuple[QueuedView, ...]
    left_out: int = 0  #: behind these


class ParametersAnswer(Value):
    """The rules and limits that hold now."""

    parameters: Parameters
    overridden: tuple[str, ...]  #: names that were set since the daemon was configured


Answer = (
    Done
    | SessionWelcome
    | HostWelcome
    | InstallsAnswer
    | AttemptAnswer
    | AdoptAnswer
    | RecordAnswer
    | RecordsAnswer
    | ExplainAnswer
    | InventoryAnswer
    | LeasesAnswer
    | QueueAnswer
    | ParametersAnswer
    | LeaseAnswer
)


# --- pushes to requester sessions


class GrantedPush(Value):
    """push `granted`: a waiting request got its lease; `renew` it within accept_s."""

    holder: JobId | None
    attempt: str
    granted: Granted


class ImpossiblePush(Value):
    """push `impossible`: the inventory shrank, the request is withdrawn."""

    holder: JobId | None
    attempt: str
    explanation: Explanation


class BusyPush(Value):
    """push `busy`: it waited max_wait_s, the request is withdrawn."""

    holder: JobId | None
    attempt: str
    explanation: Explanation


class LeasePush(Value):
    """push `lease`: a lease changed its state."""

    holder: JobId | None
    attempt: str
    lease: LeaseId
    state: LeaseState
    reason: EndReason | None
    detail: str
    device: str  #: of its first share, for people: "host/index kind model"


class HandlePush(Value):
    """push `handle`: somebody received the same message again."""

    holder: JobId
    handle: str


class DisownedPush(Value):
    """push `disowned`: the session does not own this record any more."""

    holder: JobId


Push = GrantedPush | ImpossiblePush | BusyPush | LeasePush | HandlePush | DisownedPush


# --- actions


class Reply(Value):
    reply_to: str
    answer: Answer


class ReplyError(Value):
    """The `error` of an answer; details hold plain values or a `Record` (encode them)."""

    reply_to: str
    code: ErrorCode
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


class PushToSession(Value):
    """Dropped when the session is not connected: it asks again when it returns."""

    session: SessionId
    push: Push


class InstallOnHost(Value):
    """Dropped, like the next two, when the host is away: its hello brings the full state."""

    host: HostId
    install: Install


class EndOnHost(Value):
    host: HostId
    lease: LeaseId
    fence: int  #: 0: a lease the scheduler no longer knows
    reason: EndReason


class StagedOnHost(Value):
    host: HostId
    lease: LeaseId
    connect_by_s: float


class ResizeOnHost(Value):
    """Dropped, like the others, when the host is away."""

    host: HostId
    lease: LeaseId
    compute_limit_pct: int  #: of all its shares there


class WakeAt(Value):
    """Send `Ticked` at this monotonic moment. The newest replaces all earlier ones."""

    at_s: float


Action = (
    Reply
    | ReplyError
    | PushToSession
    | InstallOnHost
    | EndOnHost
    | StagedOnHost
    | ResizeOnHost
    | WakeAt
)

#: Names of pushes on the wire.
PUSH_NAMES: Mapping[type[Push], str] = {
    GrantedPush: "granted",
    ImpossiblePush: "impossible",
    BusyPush: "busy",
    LeasePush: "lease",
    HandlePush: "handle",
    DisownedPush: "disowned",
}
