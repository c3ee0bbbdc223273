"""Ops of a requester session (orchestrators, `ssgm`, tools): one class per op, its wire fields.

Every op is idempotent: a client repeats what was in flight when a connection broke. `OPS` maps the
wire names to the classes; `docs/architecture.md` says what each one means and answers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from corekit.errors import invalid
from corekit.ids import DeviceId, HostId, JobId, LeaseId, SessionId
from corekit.values import Value, field
from gpu_scheduler.model import LENGTH_S_MAX, Door, EndReason, LeaseLifetime, Request
from gpu_scheduler.names import NAME_CHARS_MAX, named

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


def _network(text: str) -> None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        known = "an address or a network, as 10.0.0.7 or 10.0.0.0/24"
        raise invalid(f"sources: {text!r:.80} is not {known}") from None


def _past(what: str, ago_s: float) -> None:
    if not 0 <= ago_s <= LENGTH_S_MAX:
        raise invalid(f"{what} must lie in 0…{LENGTH_S_MAX:.0f} seconds")


def _held(hold: LeaseLifetime, lease_s: float | None) -> None:
    if hold is LeaseLifetime.DEADLINE and lease_s is None:
        raise invalid("hold 'deadline' needs lease_s, the seconds until the lease ends")
    if lease_s is not None and not 0 < lease_s <= LENGTH_S_MAX:
        at_most = f"more than 0 and at most {LENGTH_S_MAX:.0f} seconds"
        raise invalid(f"lease_s {lease_s:g} must be {at_most}")


def _at_most(what: str, value: str, limit: int) -> None:
    if len(value) > limit:
        raise invalid(f"{what} has {len(value)} characters; at most {limit}")


class Hello(Value):
    """First request of the connection (`role: "requester"`) → `SessionWelcome`."""

    session: str
    version: int

    def __post_init__(self) -> None:
        named("session", self.session)


class Beat(Value):
    """The session lives."""


class Watch(Value):
    """`all`: this session gets every push about every lease."""

    all: bool


class Attempt(Value):
    """Open attempt `n` and ask for its share → `AttemptOutcome`."""

    holder: JobId
    n: int
    revision: int  #: of the record as the caller knows it; 0 = must not exist
    request: Request
    handle: str = ""
    block: Mapping[str, Any] = field(default_factory=dict)
    wait: bool = True
    hold: LeaseLifetime = (
        LeaseLifetime.SESSION
    )  #: DEADLINE: for code without our session; needs `request.lease_s`
    received_ago_s: float = 0.0  #: since the job came into the caller's hands; for a new record

    def __post_init__(self) -> None:
        named("holder", self.holder)
        _at_most("handle", self.handle, HANDLE_CHARACTERS_MAX)
        if not (1 <= self.n <= NUMBER_MAX and 0 <= self.revision <= NUMBER_MAX):
            raise invalid(f"n must lie in 1…{NUMBER_MAX}, revision in 0…{NUMBER_MAX}")
        if self.hold is LeaseLifetime.DEADLINE and self.request.lease_s is None:
            raise invalid("hold 'deadline' needs request.lease_s, the seconds until the lease ends")
        _past("received_ago_s", self.received_ago_s)


class Adopt(Value):
    """Take an ownerless record → `Adopted`."""

    holder: JobId
    revision: int
    handle: str | None = None

    def __post_init__(self) -> None:
        named("holder", self.holder)
        _at_most("handle", self.handle or "", HANDLE_CHARACTERS_MAX)


class Orphans(Value):
    """Records without a live owner, not ENDED → `Records`."""

    limit: int = PAGE_MAX

    def __post_init__(self) -> None:
        _page(self.limit)


class RecordOf(Value):
    """Op `record` → `RecordAnswer`."""

    holder: JobId

    def __post_init__(self) -> None:
        named("holder", self.holder)


class Records(Value):
    """A page of all records, newest first, after holder `after` → `RecordsAnswer`."""

    limit: int = PAGE_MAX
    after: JobId | None = None

    def __post_init__(self) -> None:
        named("after", self.after)
        _page(self.limit)


def _positive(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise invalid(f"limit {limit} must be 1 or more")


def _page(limit: int) -> None:
    if not 1 <= limit <= PAGE_MAX:
        raise invalid(f"limit {limit} must lie in 1…{PAGE_MAX}; ask for the next page with `after`")


class Handle(Value):
    """The newest receipt handle of a job's message."""

    holder: JobId
    handle: str

    def __post_init__(self) -> None:
        named("holder", self.holder)
        _at_most("handle", self.handle, HANDLE_CHARACTERS_MAX)


class HandBack(Value):
    """Withdraw the waiting request; the record loses its owner, keeps its place."""

    holder: JobId
    revision: int

    def __post_init__(self) -> None:
        named("holder", self.holder)


class Renew(Value):
    """The lease stays RESERVED for another `reserved_ttl_s`; the first one accepts a push.

    With `lease_s` a deadline lease ends so long from now.
    """

    lease: LeaseId
    lease_s: float | None = None

    def __post_init__(self) -> None:
        named("lease", self.lease)
        if self.lease_s is not None and not 0 < self.lease_s <= LENGTH_S_MAX:
            raise invalid(f"lease_s must be more than 0 and at most {LENGTH_S_MAX:g} seconds")


class StagedOp(Value):
    """Op `staged`: the envelope is out, nothing renews after that."""

    holder: JobId
    lease: LeaseId
    connect_by_s: float

    def __post_init__(self) -> None:
        named("holder", self.holder)
        named("lease", self.lease)
        if not 0 < self.connect_by_s <= LENGTH_S_MAX:
            raise invalid(f"connect_by_s must be more than 0 and at most {LENGTH_S_MAX:g} seconds")


class Release(Value):
    """End a lease; unknown = success."""

    lease: LeaseId
    reason: EndReason = EndReason.RELEASED
    detail: str = ""

    def __post_init__(self) -> None:
        named("lease", self.lease)
        _at_most("detail", self.detail, DETAIL_CHARACTERS_MAX)


class Resize(Value):
    """Another elastic limit of compute for a shared lease → `LeaseAnswer`; the rest stays."""

    lease: LeaseId
    compute_limit_pct: int

    def __post_init__(self) -> None:
        named("lease", self.lease)
        if not 1 <= self.compute_limit_pct <= 100:
            raise invalid("compute_limit_pct must lie in 1…100")


class Transfer(Value):
    """A reservation belongs to session `to` from now on → `LeaseAnswer`.

    Its own session may do so, or anybody once that is gone.
    """

    lease: LeaseId
    to: SessionId

    def __post_init__(self) -> None:
        named("lease", self.lease)
        named("to", self.to)


class FailAttempt(Value):
    """The newest attempt is over; its leases end, the owner stays."""

    holder: JobId
    revision: int
    reason: str
    detail: str = ""
    retry_at_s: float | None = None  #: wall clock

    def __post_init__(self) -> None:
        named("holder", self.holder)
        named("reason", self.reason)
        _at_most("detail", self.detail, DETAIL_CHARACTERS_MAX)


class Finish(Value):
    """The job is terminal; all its leases end in the same entry.

    Of a job that never had a record nothing is kept, unless `block` says what it was about.
    """

    holder: JobId
    outcome: str
    reason: str
    detail: str = ""
    block: Mapping[str, Any] | None = None
    received_ago_s: float = 0.0  #: as in `Attempt`
    committed_ago_s: float | None = None  #: since the caller saw the job's result

    def __post_init__(self) -> None:
        named("holder", self.holder)
        named("outcome", self.outcome)
        named("reason", self.reason)
        _at_most("detail", self.detail, DETAIL_CHARACTERS_MAX)
        _past("received_ago_s", self.received_ago_s)
        _past("committed_ago_s", self.committed_ago_s or 0.0)


class Reopen(Value):
    """Redrive of a FAILED record."""

    holder: JobId
    revision: int
    handle: str

    def __post_init__(self) -> None:
        named("holder", self.holder)
        _at_most("handle", self.handle, HANDLE_CHARACTERS_MAX)


class Reserve(Value):
    """A lease without a job record → `AttemptOutcome`."""

    attempt: str
    request: Request
    wait: bool = False
    hold: LeaseLifetime = LeaseLifetime.SESSION
    lease_s: float | None = None  #: length of a DEADLINE hold
    door: Door = Door.GATEWAY
    #: Door.PORT: addresses or networks that may connect; empty = the asker's, as the scheduler
    #: sees it.
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named("attempt", self.attempt)
        if len(self.sources) > SOURCES_MAX:
            raise invalid(f"at most {SOURCES_MAX} sources may connect, not {len(self.sources)}")
        for source in self.sources:
            _network(source)
        if self.sources and self.door is not Door.PORT:
            raise invalid("sources belong to door 'port': the gateway asks for a proof instead")
        _held(self.hold, self.lease_s)


class Withdraw(Value):
    """A reservation nobody waits for any more: out of the queue, or its lease ends."""

    attempt: str

    def __post_init__(self) -> None:
        named("attempt", self.attempt)


class Explain(Value):
    """Why it waits, or (request) what would be answered → `Explained`. Exactly one is given."""

    attempt: str | None = None
    holder: JobId | None = None
    request: Request | None = None
    hold: LeaseLifetime = (
        LeaseLifetime.SESSION
    )  #: of the lease that the request would get, as is its length
    lease_s: float | None = None

    def __post_init__(self) -> None:
        named("attempt", self.attempt)
        named("holder", self.holder)
        _held(self.hold, self.lease_s)
        given = [x for x in (self.attempt, self.holder, self.request) if x is not None]
        if len(given) != 1:
            raise invalid("explain needs exactly one of attempt, holder, request")


class Inventory(Value):
    """Hosts by name, devices, what is promised of them → `InventoryAnswer`, page by page."""

    after: HostId | None = None  #: the last host of the page before
    limit: int | None = None  #: devices of a page; a host is not split; None = everything

    def __post_init__(self) -> None:
        named("after", self.after)
        _positive(self.limit)


class Leases(Value):
    """All leases that are not ENDED, oldest first → `LeasesAnswer`, page by page."""

    after: int = 0  #: fence of the last lease of the page before
    limit: int | None = None  #: shares of a page; a lease is not split; None = everything

    def __post_init__(self) -> None:
        _positive(self.limit)


class Queue(Value):
    """Waiting requests in the order of service → `QueueAnswer`."""

    limit: int | None = None  #: the first of them; None = all

    def __post_init__(self) -> None:
        _positive(self.limit)


class Drain(Value):
    """No new leases on this host, or on one device of it; what lives there goes on.

    With `revoke` it ends as REVOKED.
    """

    host: HostId
    device: DeviceId | None = None
    revoke: bool = False

    def __post_init__(self) -> None:
        named("host", self.host)
        named("device", self.device)


class Undrain(Value):
    """New leases on this host, or on this device of it, again."""

    host: HostId
    device: DeviceId | None = None

    def __post_init__(self) -> None:
        named("host", self.host)
        named("device", self.device)


class Forget(Value):
    """The host is gone for good; its devices leave the inventory."""

    host: HostId

    def __post_init__(self) -> None:
        named("host", self.host)


class ParametersOf(Value):
    """Op `parameters`: the rules and limits that hold now → `ParametersAnswer`."""


class SetParameter(Value):
    """Op `set`: one parameter changes, durably and at once → `ParametersAnswer`."""

    name: str  #: one of `gpu_scheduler.parameters.NAMES`
    value: Any  #: a word or a number; "none" takes a limit away, "default" the change itself

    def __post_init__(self) -> None:
        named("name", self.name)
        if not isinstance(self.value, (str, int, float, type(None))):
            raise invalid("value must be a word, a number or null")
        if isinstance(self.value, str):
            _at_most("value", self.value, NAME_CHARS_MAX)
