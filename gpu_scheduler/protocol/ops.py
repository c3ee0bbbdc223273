"""Ops of a requester session (orchestrators, `ssgm`, tools): one class per op, with its fields.

A field is declared here once: client, endpoints and core all carry the op itself, and the
description of the HTTP API is made from it. Every op is idempotent: a client repeats what was in
flight when a connection broke. `docs/protocol.md` describes what each one means and answers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeVar, cast, get_args

from corekit.decode import encode_json
from corekit.errors import invalid
from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId, SessionId
from corekit.values import Checked, Meta, Value, checked, field
from gpu_scheduler.model import (
    BLOCK_BYTES_MAX,
    LENGTH_S_MAX,
    Door,
    EndReason,
    LeaseLifetime,
    Request,
)
from gpu_scheduler.names import NAME, NAME_CHARS_MAX
from gpu_scheduler.protocol.answers import (
    AdoptAnswer,
    AttemptAnswer,
    Done,
    ExplainAnswer,
    InventoryAnswer,
    LeaseAnswer,
    LeasesAnswer,
    ParametersAnswer,
    QueueAnswer,
    RecordAnswer,
    RecordsAnswer,
    SessionWelcome,
)

#: Records in one page: keeps an answer below the longest line.
PAGE_MAX = 200
#: SQS receipt handles are below 1,024 characters; S3-style ones of other queues a little longer.
HANDLE_CHARACTERS_MAX = 4096
#: A sentence for people is not a log.
DETAIL_CHARACTERS_MAX = 2000
#: Of an attempt or a revision: no job writes its record more often than that.
NUMBER_MAX = 2**31 - 1
#: Networks that may reach the port of one lease; each costs a look for every connection.
SOURCES_MAX = 16


def _network_problem(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return f"{text!r:.80} is not an address or a network, as 10.0.0.7 or 10.0.0.0/24"
    return None


def _block_problem(block: Mapping[str, Any]) -> str | None:
    size = len(encode_json(block)) if block else 0
    return None if size <= BLOCK_BYTES_MAX else f"has {size} bytes; at most {BLOCK_BYTES_MAX}"


Name = Annotated[str, NAME]
Block = Annotated[Mapping[str, Any], Meta(extra={"problem": _block_problem})]
AttemptName = Annotated[AttemptId, NAME]
Holder = Annotated[JobId, NAME]
LeaseName = Annotated[LeaseId, NAME]
HostName = Annotated[HostId, NAME]
DeviceName = Annotated[DeviceId, NAME]
ReceiptHandle = Annotated[str, Meta(max_length=HANDLE_CHARACTERS_MAX)]
Detail = Annotated[str, Meta(max_length=DETAIL_CHARACTERS_MAX)]
Revision = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
#: Seconds that have passed: since a message was received, since a result was seen.
AgoS = Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)]
#: Of a lease or a deadline, in seconds.
LengthS = Annotated[float, Meta(gt=0, le=LENGTH_S_MAX)]
PageLimit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
CountLimit = Annotated[int, Meta(ge=1)]
Network = Annotated[str, Meta(extra={"problem": _network_problem})]

AnswerT_co = TypeVar("AnswerT_co", bound=Value, covariant=True)


class Op(Checked, Generic[AnswerT_co]):
    """A request of a requester session; the parameter is the class of its good answer."""


class Hello(Op[SessionWelcome]):
    """First request of the connection (`role: "requester"`)."""

    session: Name
    version: int


class Beat(Op[Done]):
    """The session lives."""


class Watch(Op[Done]):
    """`all`: this session gets every push about every lease."""

    all: bool


class Attempt(Op[AttemptAnswer]):
    """Open attempt `n` and ask for its share. CONFLICT has `details.record`."""

    holder: Holder
    n: Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
    revision: Revision  #: of the record as the caller knows it; 0 = must not exist
    request: Request
    handle: ReceiptHandle = ""
    block: Block = field(default_factory=dict)  #: JSON of the orchestrator's own
    wait: bool = True
    hold: LeaseLifetime = (
        LeaseLifetime.SESSION
    )  #: DEADLINE: for code without our session; needs `request.lease_s`
    received_ago_s: AgoS = 0.0  #: since the caller received the job; for a new record


class Adopt(Op[AdoptAnswer]):
    """Take an ownerless record. CONFLICT has `details.record`."""

    holder: Holder
    revision: int
    handle: ReceiptHandle | None = None


class Orphans(Op[RecordsAnswer]):
    """Records without a live owner that are not ENDED, longest ownerless first."""

    limit: PageLimit = PAGE_MAX


class RecordOf(Op[RecordAnswer]):
    """Op `record`: the record of one job."""

    holder: Holder


class Records(Op[RecordsAnswer]):
    """A page of all records, newest first, after holder `after`."""

    limit: PageLimit = PAGE_MAX
    after: Holder | None = None


class Handle(Op[Done]):
    """The newest receipt handle of a job's message; unknown holder = success."""

    holder: Holder
    handle: ReceiptHandle


class HandBack(Op[RecordAnswer]):
    """Withdraw the waiting request; the record loses its owner, keeps its place."""

    holder: Holder
    revision: int


class Renew(Op[Done]):
    """The lease stays RESERVED for another `reserved_ttl_s`; the first one accepts a push."""

    lease: LeaseName
    lease_s: LengthS | None = None  #: new remaining duration of a deadline lease


class StagedOp(Op[RecordAnswer]):
    """Op `staged`: the envelope is out, nothing renews after that."""

    holder: Holder
    lease: LeaseName
    connect_by_s: LengthS


class Release(Op[Done]):
    """End a lease; unknown = success."""

    lease: LeaseName
    reason: EndReason = EndReason.RELEASED
    detail: Detail = ""


class Resize(Op[LeaseAnswer]):
    """Another elastic limit of compute for a shared lease; the rest stays."""

    lease: LeaseName
    compute_limit_pct: Annotated[int, Meta(ge=1, le=100)]


class Transfer(Op[LeaseAnswer]):
    """A reservation changes its session: by its own session, or by any once that is gone."""

    lease: LeaseName
    to: Annotated[SessionId, NAME]


class FailAttempt(Op[RecordAnswer]):
    """The newest attempt is over; its leases end, the owner stays."""

    holder: Holder
    revision: int
    reason: Name
    detail: Detail = ""
    retry_at_s: float | None = None  #: wall clock; kept in record.times["RETRY_AT"]


class Finish(Op[RecordAnswer]):
    """The job is terminal; all its leases end in the same journal record.

    Of a job that never had a record nothing is kept, unless `block` describes it.
    """

    holder: Holder
    outcome: Name
    reason: Name
    detail: Detail = ""
    block: Block | None = None
    received_ago_s: AgoS = 0.0  #: as in `Attempt`
    committed_ago_s: AgoS | None = None  #: since the caller saw the job's result


class Reopen(Op[RecordAnswer]):
    """Redrive of a FAILED record. CONFLICT has `details.record`."""

    holder: Holder
    revision: int
    handle: ReceiptHandle


class Reserve(Op[AttemptAnswer]):
    """A lease without a job record; `lease_s` is needed with LeaseLifetime.DEADLINE."""

    attempt: AttemptName
    request: Request
    wait: bool = False
    hold: LeaseLifetime = LeaseLifetime.SESSION
    lease_s: LengthS | None = None  #: length of the lease; None = the request's own
    door: Door = Door.GATEWAY
    #: Door.PORT: addresses or networks that may connect; empty = the caller's own address.
    sources: Annotated[tuple[Network, ...], Meta(max_length=SOURCES_MAX)] = ()

    def __post_init__(self) -> None:
        checked(self)
        if self.sources and self.door is not Door.PORT:
            raise invalid("sources belong to door 'port': the gateway asks for a proof instead")


class Withdraw(Op[Done]):
    """End a reservation of this session: out of the queue, or its lease ends; unknown = success."""

    attempt: AttemptName


class Explain(Op[ExplainAnswer]):
    """Why a request waits, or (request) what would be answered now. Exactly one is given."""

    attempt: AttemptName | None = None
    holder: Holder | None = None
    request: Request | None = None
    hold: LeaseLifetime = (
        LeaseLifetime.SESSION
    )  #: of the lease that the request would get, as is its length
    lease_s: LengthS | None = None

    def __post_init__(self) -> None:
        checked(self)
        if [self.attempt, self.holder, self.request].count(None) != 2:
            raise invalid("explain needs exactly one of attempt, holder, request")


class Inventory(Op[InventoryAnswer]):
    """Hosts by name, devices, what is promised of them, page by page."""

    after: HostName | None = None  #: the last host of the page before
    limit: CountLimit | None = None  #: devices of a page; a host is not split; None = everything


class Leases(Op[LeasesAnswer]):
    """All leases that are not ENDED, oldest first, page by page."""

    after: int = 0  #: fence of the last lease of the page before
    limit: CountLimit | None = None  #: shares of a page; a lease is not split; None = everything


class Queue(Op[QueueAnswer]):
    """Waiting requests in the order of service, ownerless ones last."""

    limit: CountLimit | None = None  #: the first of them; None = all


class Drain(Op[Done]):
    """No new leases on this host, or on one device of it; live leases go on."""

    host: HostName
    device: DeviceName | None = None
    revoke: bool = False  #: live leases end as REVOKED


class Undrain(Op[Done]):
    """New leases on this host, or on this device of it, again."""

    host: HostName
    device: DeviceName | None = None


class Forget(Op[Done]):
    """The host is gone for good; its devices leave the inventory. CONFLICT while it is up."""

    host: HostName


class ParametersOf(Op[ParametersAnswer]):
    """Op `parameters`: the rules and limits that hold now."""


class SetParameter(Op[ParametersAnswer]):
    """Op `set`: one parameter changes, durably and at once."""

    name: Name  #: one of `gpu_scheduler.parameters.NAMES`
    #: A word or a number; "none" takes a limit away, "default" the change itself.
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
    "release": Release,
    "fail_attempt": FailAttempt,
    "finish": Finish,
    "reopen": Reopen,
    "reserve": Reserve,
    "withdraw": Withdraw,
    "explain": Explain,
    "inventory": Inventory,
    "leases": Leases,
    "queue": Queue,
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
    """The class of an op's good answer, which the op's own class names."""
    return cast("type[AnswerT_co]", _ANSWERS[op])
