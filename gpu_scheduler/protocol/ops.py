"""Ops of a requester session (orchestrators, `ssgm`, tools): one class per op, with its fields.

A field is declared here once: client, endpoints and core all carry the op itself, and the
description of the HTTP API is generated from it. Every op is idempotent: a client repeats the ops
that were in flight when a connection broke. `docs/reference/protocol.md` describes each op and its
answer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeVar, cast, get_args

from corekit.decode import DEPTH_MAX, encode_json, is_deeper
from corekit.errors import invalid
from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId, SessionId
from corekit.values import Checked, Meta, Value, checked, field
from gpu_scheduler.floors import FLOORS_MAX, WarmFloor
from gpu_scheduler.model import (
    BLOCK_BYTES_MAX,
    COUNT_MAX,
    LENGTH_S_MAX,
    Door,
    EndReason,
    LeaseLifetime,
    LimitPercent,
    Name,
    Request,
)
from gpu_scheduler.names import AWAY, NAME, NAME_CHARS_MAX
from gpu_scheduler.promises import STEPS_MAX, PromisedStep, Slo
from gpu_scheduler.protocol.answers import (
    AdmitAnswer,
    AdoptAnswer,
    AttemptAnswer,
    DemandAnswer,
    Done,
    ExplainAnswer,
    InventoryAnswer,
    KeepWarmAnswer,
    LeaseAnswer,
    LeasesAnswer,
    ParametersAnswer,
    QueueAnswer,
    RecordAnswer,
    RecordsAnswer,
    SessionWelcome,
    WorkloadsAnswer,
)
from gpu_scheduler.protocol.pools import POOLS_MAX, PoolView, Sentence

#: The most records in one page: keeps an answer below the longest line.
PAGE_MAX = 200
#: SQS receipt handles are below 1,024 characters; those of other queues are a little longer.
HANDLE_CHARACTERS_MAX = 4096
#: The most characters of a detail: a sentence for people, not a log.
DETAIL_CHARACTERS_MAX = 2000
#: The largest attempt or revision: no job writes its record more often.
NUMBER_MAX = 2**31 - 1
#: The most characters of the id of a workload: a published key and the name of a model.
WORKLOAD_ID_CHARACTERS_MAX = 2 * NAME_CHARS_MAX
#: The most networks that may reach the port of a lease; each connection is compared with all.
SOURCES_MAX = 16


def _network_problem(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return f"{text!r:.80} is not an address or a network, such as 10.0.0.7 or 10.0.0.0/24"
    return None


def _block_problem(block: Mapping[str, Any]) -> str | None:
    text = encode_json(block) if block else b""
    if text.count(b"[") + text.count(b"{") > DEPTH_MAX and is_deeper(block, DEPTH_MAX):
        return f"is nested deeper than {DEPTH_MAX} levels"
    size = len(text)
    return None if size <= BLOCK_BYTES_MAX else f"has {size} bytes; at most {BLOCK_BYTES_MAX}"


Block = Annotated[Mapping[str, Any], Meta(extra={"problem": _block_problem})]
AttemptName = Annotated[AttemptId, NAME]
Holder = Annotated[JobId, NAME]
LeaseName = Annotated[LeaseId, NAME]
HostName = Annotated[HostId, NAME]
DeviceName = Annotated[DeviceId, NAME]
ReceiptHandle = Annotated[str, Meta(max_length=HANDLE_CHARACTERS_MAX)]
Detail = Annotated[str, Meta(max_length=DETAIL_CHARACTERS_MAX)]
Revision = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
#: Elapsed seconds, for example since a message was received or a result was seen.
AgoS = Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)]
#: Length of a lease, or time to a deadline, in seconds.
LengthS = Annotated[float, Meta(gt=0, le=LENGTH_S_MAX)]
PageLimit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
CountLimit = Annotated[int, Meta(ge=1)]
Network = Annotated[str, Meta(extra={"problem": _network_problem})]

AnswerT_co = TypeVar("AnswerT_co", bound=Value, covariant=True)


def _require_device(request: Request) -> None:
    if not request.count:
        raise invalid(f"count 0 must lie in 1…{COUNT_MAX}; 0 is for attempts of jobs alone")


class Op(Checked, Generic[AnswerT_co]):
    """A request of a requester session; the parameter is the class of the successful answer."""


class Hello(Op[SessionWelcome], omit_defaults=True):
    """The first request of a connection (`role: "requester"`)."""

    session: Name
    version: int  #: the newest of the protocol that the client speaks
    oldest_version: int | None = None  #: the oldest; None: no other

    def __post_init__(self) -> None:
        checked(self)
        if self.session.rpartition("/")[2].startswith(AWAY):
            raise invalid(f"a session does not begin with {AWAY!r}: use another name")


class Beat(Op[Done], omit_defaults=True):
    """Keep the session alive; and what its functions may have of their account."""

    account: Name = ""  #: of the cloud in which its functions run; "" = as before
    #: The most functions of the account that wait for devices which are not free yet.
    ahead_max: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | None = None
    #: No lease is granted ahead for the account, or else the session, for this long from now.
    throttled_s: AgoS = 0.0


class Watch(Op[Done], omit_defaults=True):
    """Subscribe; with `all`, this session gets every push about every lease."""

    all: bool
    records: bool = False  #: it also gets every push about every job record


class Attempt(Op[AttemptAnswer]):
    """Open attempt `n` and request its share. CONFLICT has `details.record`."""

    holder: Holder
    n: Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
    revision: Revision  #: of the record as the caller knows it; 0 = the record must not exist
    request: Request
    handle: ReceiptHandle = ""
    block: Block = field(default_factory=dict)  #: JSON data of the orchestrator
    wait: bool = True
    hold: LeaseLifetime = (
        LeaseLifetime.SESSION
    )  #: DEADLINE: for code without a session; needs `request.lease_s`
    received_ago_s: AgoS = 0.0  #: since the caller received the job; for a new record


class Adopt(Op[AdoptAnswer]):
    """Take an ownerless record. CONFLICT has `details.record`."""

    holder: Holder
    revision: int
    handle: ReceiptHandle | None = None


class Orphans(Op[RecordsAnswer]):
    """List records without a live owner that are not ENDED, longest ownerless first."""

    limit: PageLimit = PAGE_MAX


class RecordOf(Op[RecordAnswer]):
    """Op `record`: read the record of one job."""

    holder: Holder


class Records(Op[RecordsAnswer]):
    """List a page of all records, newest first, after holder `after`."""

    limit: PageLimit = PAGE_MAX
    after: Holder | None = None


class Handle(Op[Done]):
    """Store the newest receipt handle of a job's message; unknown holder = success."""

    holder: Holder
    handle: ReceiptHandle


class HandBack(Op[RecordAnswer]):
    """Withdraw the waiting request; the record loses its owner but keeps its place.

    With `away`, the name of a queue, the request waits on and the lease stays: the scheduler sends
    a wake-up to that queue when there is something to do for the job. INVALID without a waker.
    """

    holder: Holder
    revision: int
    away: str = ""


class Renew(Op[Done]):
    """Keep the lease RESERVED for another `reserved_ttl_s`; the first renewal accepts the grant."""

    lease: LeaseName
    lease_s: LengthS | None = None  #: new remaining duration of a deadline lease


class StagedOp(Op[RecordAnswer]):
    """Op `staged`: the envelope is stored; the lease is not renewed after that."""

    holder: Holder
    lease: LeaseName | None  #: None: of an attempt without a device
    connect_by_s: LengthS


class StartedOp(Op[Done]):
    """Op `started`: the function of an attempt without a device has started; any may report it.

    Unknown, ended and other attempts = success: nothing changes.
    """

    holder: Holder
    n: Annotated[int, Meta(ge=1, le=NUMBER_MAX)]


class Release(Op[Done]):
    """End a lease; unknown lease = success."""

    lease: LeaseName
    reason: EndReason = EndReason.RELEASED
    detail: Detail = ""


class Resize(Op[LeaseAnswer]):
    """Change the elastic compute limit of a shared lease; the rest stays."""

    lease: LeaseName
    compute_limit_pct: LimitPercent


class Transfer(Op[LeaseAnswer]):
    """Move a reservation to another session: by its own session, or by any once that is gone."""

    lease: LeaseName
    to: Annotated[SessionId, NAME]


class FailAttempt(Op[RecordAnswer]):
    """End the newest attempt as failed; its leases end, the owner stays."""

    holder: Holder
    revision: int
    reason: Name
    detail: Detail = ""
    retry_at_s: float | None = None  #: wall clock; kept in record.times["RETRY_AT"]


class Finish(Op[RecordAnswer]):
    """End a job; all its leases end in the same journal entry.

    Nothing is kept of a job that never had a record, unless `block` describes it; of one that has
    a record it is the last block.
    """

    holder: Holder
    outcome: Name
    reason: Name
    detail: Detail = ""
    block: Block | None = None
    received_ago_s: AgoS = 0.0  #: as in `Attempt`
    committed_ago_s: AgoS | None = None  #: since the caller saw the job's result
    #: Of a job that succeeded at its first attempt: its time outside of its lease and its waiting,
    #: which is learned for promises (`PromisedStep.way_s`), of this workload of its tenant.
    way_s: AgoS | None = None
    workload: Name | None = None


class Reopen(Op[RecordAnswer]):
    """Redrive a FAILED record. CONFLICT has `details.record`."""

    holder: Holder
    revision: int
    handle: ReceiptHandle


class Reserve(Op[AttemptAnswer]):
    """Request a lease without a job record; LeaseLifetime.DEADLINE needs `lease_s`."""

    attempt: AttemptName
    request: Request
    wait: bool = False
    hold: LeaseLifetime = LeaseLifetime.SESSION
    lease_s: LengthS | None = None  #: length of the lease; None = the length in the request
    door: Door = Door.GATEWAY
    #: Door.PORT: addresses or networks that may connect; empty = the address of the caller.
    sources: Annotated[tuple[Network, ...], Meta(max_length=SOURCES_MAX)] = ()

    def __post_init__(self) -> None:
        checked(self)
        _require_device(self.request)
        if self.sources and self.door is not Door.PORT:
            raise invalid("sources need door 'port'; the gateway checks the lease's secret instead")


class Admit(Op[AdmitAnswer]):
    """Promise that a run meets its objectives, and book devices for all its steps; or refuse it.

    A single request is a run of one step. Repeated for a promised run, it answers with its promise.
    CONFLICT: the policy in force gives no promises, or the run was promised with other steps or
    another objective.
    """

    run: Name
    steps: Annotated[tuple[PromisedStep, ...], Meta(min_length=1, max_length=STEPS_MAX)]
    slo: Slo | None = None  #: None: only a quote has no objective
    quote: bool = False  #: True: answer only; nothing is booked

    def __post_init__(self) -> None:
        checked(self)
        if not self.steps:
            raise invalid("steps: a run has at least one step")
        if self.slo is None and not self.quote:
            raise invalid("slo: a promise needs an objective; only a quote has none")


class Waive(Op[Done]):
    """End the promise of a run: its bookings are free; unknown run = success."""

    run: Name
    #: Of a step that is not needed any more: its booking alone is free, and the run's promise
    #: stays; unknown job, or one with a lease = success. None: the whole promise ends.
    job: Name | None = None


class Withdraw(Op[Done]):
    """Withdraw a reservation of this session, or end its lease; unknown attempt = success."""

    attempt: AttemptName


class Explain(Op[ExplainAnswer]):
    """Explain why a request waits, or what outcome `request` would have. Exactly one is given."""

    attempt: AttemptName | None = None
    holder: Holder | None = None
    request: Request | None = None
    hold: LeaseLifetime = LeaseLifetime.SESSION  #: lifetime of the lease that the request would get
    lease_s: LengthS | None = None

    def __post_init__(self) -> None:
        checked(self)
        if [self.attempt, self.holder, self.request].count(None) != 2:
            raise invalid("explain needs exactly one of attempt, holder and request")
        if self.request is not None:
            _require_device(self.request)


class Inventory(Op[InventoryAnswer]):
    """List hosts by name, with their devices and allocations, page by page."""

    after: HostName | None = None  #: the last host of the page before
    limit: CountLimit | None = None  #: devices of a page; a host is not split; None = everything


class Leases(Op[LeasesAnswer]):
    """List all leases that are not ENDED, oldest first, page by page."""

    after: int = 0  #: fence of the last lease of the page before
    limit: CountLimit | None = None  #: shares of a page; a lease is not split; None = everything


class Queue(Op[QueueAnswer]):
    """List waiting requests in the order of service, ownerless ones last."""

    limit: CountLimit | None = None  #: number of requests, from the first; None = all


class Demand(Op[DemandAnswer]):
    """Sum up the waiting requests by what they ask for, for a fleet that starts hosts for them."""

    limit: PageLimit = PAGE_MAX  #: groups, from the largest


class ReportFleet(Op[Done], omit_defaults=True):
    """Report the pools of a fleet: each report replaces the one of this session before it.

    It counts for `fleet_report_s`, and is not journalled. Of pools with one name the newest counts.
    """

    pools: Annotated[tuple[PoolView, ...], Meta(max_length=POOLS_MAX)]
    notices: Annotated[tuple[Sentence, ...], Meta(max_length=POOLS_MAX)] = ()


class KeepWarm(Op[KeepWarmAnswer]):
    """Replace the warm floors of this session; of several sessions' floors of one workload the
    highest counts. A floor that the caller may not declare is refused alone.

    They end with the session, and are not journalled: a client repeats them from time to time.
    """

    floors: Annotated[tuple[WarmFloor, ...], Meta(max_length=FLOORS_MAX)]


class Workloads(Op[WorkloadsAnswer]):
    """List learned times of workloads by id, page by page."""

    after: Annotated[str, Meta(max_length=WORKLOAD_ID_CHARACTERS_MAX)] = ""  #: last id before
    limit: PageLimit = PAGE_MAX


class Drain(Op[Done]):
    """Stop new leases on this host, or on one of its devices; live leases continue."""

    host: HostName
    device: DeviceName | None = None
    revoke: bool = False  #: True: live leases end as REVOKED


class Undrain(Op[Done]):
    """Allow new leases on this host, or on one of its devices, again."""

    host: HostName
    device: DeviceName | None = None


class Forget(Op[Done]):
    """Remove a host and its devices from the inventory for good. CONFLICT while it is up."""

    host: HostName


class ParametersOf(Op[ParametersAnswer]):
    """Op `parameters`: read the rules and limits that are in force."""


class SetParameter(Op[ParametersAnswer]):
    """Op `set`: change one parameter, durably and at once."""

    name: Name  #: one of `gpu_scheduler.parameters.NAMES`
    #: A word or a number; "none" removes a limit, "default" removes the override.
    value: Annotated[str, Meta(max_length=NAME_CHARS_MAX)] | int | float | bool | None


#: Wire name → class of every op but `hello`.
OPS: Mapping[str, type[Op[Value]]] = {
    "beat": Beat,
    "watch": Watch,
    "attempt": Attempt,
    "adopt": Adopt,
    "orphans": Orphans,
    "record": RecordOf,
    "records": Records,
    "handle": Handle,
    "hand_back": HandBack,
    "renew": Renew,
    "staged": StagedOp,
    "started": StartedOp,
    "release": Release,
    "fail_attempt": FailAttempt,
    "finish": Finish,
    "reopen": Reopen,
    "reserve": Reserve,
    "admit": Admit,
    "waive": Waive,
    "withdraw": Withdraw,
    "explain": Explain,
    "inventory": Inventory,
    "leases": Leases,
    "queue": Queue,
    "workloads": Workloads,
    "demand": Demand,
    "report_fleet": ReportFleet,
    "keep_warm": KeepWarm,
    "drain": Drain,
    "undrain": Undrain,
    "forget": Forget,
    "parameters": ParametersOf,
    "set": SetParameter,
    "resize": Resize,
    "transfer": Transfer,
}

#: The inverse, for clients.
OP_NAMES: Mapping[type[Op[Value]], str] = {cls: name for name, cls in OPS.items()}


_ANSWERS: dict[type[Op[Value]], type[Value]] = {
    cls: get_args(cls.__dict__["__orig_bases__"][0])[0] for cls in OPS.values()
} | {Hello: SessionWelcome}


def answer_of(op: type[Op[AnswerT_co]]) -> type[AnswerT_co]:
    """The class of the successful answer to an op, from the type parameter of its class."""
    return cast("type[AnswerT_co]", _ANSWERS[op])
