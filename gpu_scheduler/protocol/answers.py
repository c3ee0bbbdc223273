"""Answers and pushes to requester sessions. All durations are relative: no clock is shared.

The core creates these values; the daemon adds only the secrets of granted leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from corekit.ids import AttemptId, HostId, JobId, LeaseId, SessionId
from corekit.values import Value, field
from gpu_scheduler.floors import FloorView
from gpu_scheduler.model import (
    Device,
    EndReason,
    GrantedLease,
    HostState,
    Lease,
    LeaseState,
    Record,
    Request,
    Resident,
    Usage,
)
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.promises import Estimate, MissCause, PlannedStep, Tradeoff
from gpu_scheduler.protocol.pools import FleetView
from gpu_scheduler.verdicts import ExpectedRun, Explanation


class Outcome(StrEnum):
    """The outcome of an attempt."""

    GRANTED = "granted"
    WAITING = "waiting"
    BUSY = "busy"
    IMPOSSIBLE = "impossible"
    OPENED = "opened"  #: the attempt needs no device


# --- answers


class Done(Value):
    """`{}`: done now or before."""


class KeepWarmAnswer(Value, omit_defaults=True):
    """The floors that the caller may not declare, each with the reason; all others hold."""

    refused: tuple[FloorView, ...] = ()


class SessionWelcome(Value, omit_defaults=True):
    """The answer to a requester's `hello`."""

    epoch: int
    now_s: float  #: wall clock
    role: str = ""  #: of its key; "" = it sent none, or the scheduler is older
    tenant: str | None = None  #: that its key is bound to


class AttemptAnswer(Value):
    """One of `granted` and `explanation` is present, neither with OPENED.

    `record` is None for `reserve`.
    """

    outcome: Outcome
    granted: GrantedLease | None = None
    explanation: Explanation | None = None
    record: Record | None = None


class AdmitAnswer(Value):
    """The promise for a run (GRANTED), or its refusal: BUSY for now, IMPOSSIBLE for good.

    Steps without a device have no booking.
    """

    outcome: Outcome
    why: str  #: one sentence
    steps: tuple[PlannedStep, ...] = ()  #: their bookings; those that are over are left out
    #: GRANTED: the end of the plan, from now. BUSY: the earliest that was found.
    end_in_s: float | None = None
    cost_usd: float | None = None  #: of the plan
    frontier: tuple[Tradeoff, ...] = ()  #: by latency: what free devices could do
    #: Of the plan, or when refused of the fastest placement on free devices: at the quantile 0.5
    #: and at that of the policy; equal where times are stated. None if times are not known.
    estimates: tuple[Estimate, ...] = ()
    #: The steps on the longest path of that, the first one first: what limits the end.
    critical: tuple[str, ...] = ()


class AdoptAnswer(Value):
    """An adopted record, and its live lease."""

    record: Record
    granted: GrantedLease | None  #: None: no live lease (`record.reason` has the reason)


class RecordAnswer(Value):
    """One job record in its current state."""

    record: Record | None


class RecordsAnswer(Value):
    """A page of job records."""

    records: tuple[Record, ...]  #: fewer than requested when a message has no room for more


class ExplainAnswer(Value):
    """The state of a request, with an explanation."""

    outcome: Outcome  #: the current one; for a dry run, the one that the request would get
    explanation: Explanation


class DeviceView(Value):
    """One device with its allocations."""

    device: Device
    memory_free_mib: int
    compute_free_pct: int | float
    leases: tuple[LeaseId, ...]
    usage: Usage | None
    drained: bool = False  #: this device alone; see also the state of its host
    residents: tuple[Resident, ...] = ()  #: evictable; their memory counts as free

    @property
    def resident_mib(self) -> int:
        """The memory that evicting all residents would free."""
        return sum(resident.memory_mib for resident in self.residents)


class DrainView(Value):
    """The drain of a host by itself."""

    reason: str
    left_s: float | None = None  #: until its leases end; None = no limit


class HostView(Value):
    """One host with its devices."""

    host: HostId
    state: HostState
    gateway: str | None
    incarnation: str
    silent_s: float  #: seconds since its last message
    devices: tuple[DeviceView, ...]
    middlewares: tuple[str, ...] = ()  #: middlewares that requests may name
    draining: DrainView | None = None  #: its own drain, not an operator's
    ephemeral: bool = False
    forgotten_in_s: float | None = None  #: of a lost ephemeral host; None = it stays
    data: Mapping[str, str] = field(default_factory=dict)  #: data sets: name → SHA-256
    programs: Mapping[str, str] = field(default_factory=dict)  #: programs of `exec`: the same


class InventoryAnswer(Value):
    """A page of hosts by name."""

    hosts: tuple[HostView, ...]
    declared: tuple[Device, ...] = ()  #: on the first page
    declared_left_out: int = 0
    more: bool = False  #: more hosts follow the last of these
    fleet: FleetView | None = None  #: on the first page; None: no fleet reports its pools
    floors: tuple[FloorView, ...] = ()  #: on the first page, as many as it has room for
    floors_left_out: int = 0


class LeasesAnswer(Value):
    """A page of live leases by fence."""

    leases: tuple[Lease, ...]
    ends_in_s: Mapping[LeaseId, float] = field(
        default_factory=dict
    )  #: lease → upper bound; see its state
    more: bool = False  #: more leases follow the last of these


class WorkloadView(Value):
    """Learned times of one workload of a tenant on one device model. Never enforced."""

    id: str  #: published key of the workload, and the model
    tenant: str
    workload: str  #: the published key instead, for callers that may not read the name
    expected: ExpectedRun
    cold_starts: int
    warm_starts: int
    residents: int  #: warm workers of the workload on all devices of the model now


class WorkloadsAnswer(Value):
    """A page of workloads by id."""

    workloads: tuple[WorkloadView, ...]
    more: bool = False  #: more workloads follow the last of these


class LeaseAnswer(Value):
    """One lease in its current state."""

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
    left_out: int = 0  #: number of requests after these


class DemandGroup(Value):
    """Waiting requests with equal requirements, of all tenants and workloads."""

    request: Request  #: one of them, without tenant, workload and priority
    count: int
    oldest_s: float  #: the wait of the longest first one in the order of service
    #: The expected time of one: the learned median over device models and workloads; where nothing
    #: is learned, `RUN_S_UNKNOWN`, or the length that it asks for if that is shorter.
    run_s: float
    runs_s: Mapping[str, float] = field(default_factory=dict)  #: the same on each learned model


class DemandAnswer(Value):
    """Requests that wait for devices, the largest groups first."""

    groups: tuple[DemandGroup, ...]
    left_out: int = 0  #: requests of groups after these
    held_back: int = 0  #: requests that wait for another reason than devices, such as a quota


class PolicyDeclaration(Value):
    """One installed queue policy, with its promises about waiting."""

    name: str
    summary: str  #: the next request, in one phrase
    decides: bool  #: False: it orders requests; True: it also names devices, and may let one wait
    work_conserving: bool  #: nothing waits that fits
    wait_bound: str  #: on the wait of requests that `starves` does not name; "" = none
    starves: str  #: requests that may wait without end; "" = none
    parameters: tuple[PolicyParameter, ...] = ()
    values: Mapping[str, str | float | bool] = field(default_factory=dict)  #: of its parameters
    decision_cost: str = ""  #: on what the time of one decision depends; "" = not stated


class ParametersAnswer(Value):
    """The rules and limits that are in force."""

    parameters: Parameters
    overridden: tuple[str, ...]  #: names of parameters that override the configuration
    policies: tuple[PolicyDeclaration, ...] = ()  #: installed; none = an older scheduler


# --- pushes


class GrantedPush(Value):
    """Push `granted`: a waiting request got its lease; `renew` it within `accept_s`."""

    holder: JobId | None
    attempt: AttemptId
    granted: GrantedLease


class ImpossiblePush(Value):
    """Push `impossible`: the inventory shrank, so the request was withdrawn."""

    holder: JobId | None
    attempt: AttemptId
    explanation: Explanation


class BusyPush(Value):
    """Push `busy`: the request waited for `max_wait_s` and was withdrawn."""

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
    device: str  #: device of the first share, for people: "host/index kind model"
    #: Not empty: granted ahead, and waits for the shares of these leases.
    after: tuple[LeaseId, ...] = ()


class RecordPush(Value):
    """Push `record`: the record of a job changed, or was forgotten."""

    holder: JobId
    record: Record | None


class HandlePush(Value):
    """Push `handle`: another session received the same message again."""

    holder: JobId
    handle: str


class PromisePush(Value):
    """Push `promise`: a promise was not kept. For sessions that watch all leases."""

    run: str
    cause: MissCause
    why: str
    late_s: float = 0.0  #: after the promised end


class DisownedPush(Value):
    """Push `disowned`: the session no longer owns this record."""

    holder: JobId


Push = (
    GrantedPush
    | ImpossiblePush
    | BusyPush
    | LeasePush
    | RecordPush
    | HandlePush
    | PromisePush
    | DisownedPush
)

#: Wire name → class of every push.
PUSHES: Mapping[str, type[Push]] = {
    "granted": GrantedPush,
    "impossible": ImpossiblePush,
    "busy": BusyPush,
    "lease": LeasePush,
    "record": RecordPush,
    "handle": HandlePush,
    "promise": PromisePush,
    "disowned": DisownedPush,
}
