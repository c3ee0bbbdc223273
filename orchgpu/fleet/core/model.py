"""Values of a fleet's decisions: offers, what is seen, what is remembered, what is to be done.

Times are wall-clock seconds that the caller passes in. A reason is a code with values; texts are
made by who shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from corekit.errors import invalid
from corekit.values import Checked, Meta, Value, checked, field
from gpu_scheduler.model import COUNT_MAX, DeviceKind, HostState, Name, Request, Word

#: The most hosts of one pool.
HOSTS_MAX = 10_000
#: Observed starts of hosts of one pool that are kept; their median is the learned start time.
STARTS_MAX = 8

Dollars = Annotated[float, Meta(ge=0, le=1e9)]
Seconds = Annotated[float, Meta(ge=0, le=30 * 86400)]
Hosts = Annotated[int, Meta(ge=0, le=HOSTS_MAX)]


class Offer(Checked):
    """One kind of host that can be had: a pool, from `min` to `max` hosts."""

    name: Name
    kind: DeviceKind
    model: Word = ""  #: as the host will report it; "" = not stated
    devices: Annotated[int, Meta(ge=1, le=COUNT_MAX)] = 1  #: of each host
    memory_mib: Annotated[int, Meta(ge=1)]  #: of each device
    usd_per_h: Dollars = 0.0  #: of each host
    spot: bool = False
    group: str = ""  #: its name at the port; "" = the name of the offer
    min: Hosts = 0
    max: Hosts
    buffer: Hosts = 0  #: idle hosts that are kept while jobs come
    idle_s: Seconds = 300.0  #: a host without a lease for this long is drained
    start_s: Annotated[float, Meta(gt=0, le=86400)] = 120.0  #: until a start time is learned

    def __post_init__(self) -> None:
        checked(self)
        if self.min > self.max:
            raise invalid(f"min {self.min} must not exceed max {self.max}")

    @property
    def at_port(self) -> str:
        """Its group at the port."""
        return self.group or self.name


class PolicyName(StrEnum):
    """A rule that makes a pool larger than waiting requests do."""

    FIXED = "fixed"  #: every pool has its `max`
    TRACKING = "tracking"  #: nothing: hosts follow the waiting requests
    FORECAST = "forecast"  #: the hosts that this hour of the day needed on the days before


class Rules(Checked):
    """Limits and aims of the whole fleet."""

    target_wait_s: Seconds = 60.0  #: waiting work is to be done this long after hosts have started
    #: A request that waits shorter starts no host: a running one is about to take it.
    patience_s: Seconds = 2.0
    usd_per_hour_max: Dollars | None = None
    usd_per_month_max: Dollars | None = None
    policy: PolicyName = PolicyName.TRACKING
    skip_s: Seconds = 600.0  #: an offer that does not deliver is left out for this long


class Offers(Value):
    """The content of an offers file."""

    offers: tuple[Offer, ...]
    rules: Rules = field(default_factory=Rules)


# ---------------------------------------------------------------------- what is seen


class Demand(Value):
    """Waiting requests with equal requirements."""

    request: Request
    count: int
    oldest_s: float  #: the longest wait of these
    run_s: float  #: the expected time of one
    runs_s: Mapping[str, float] = field(default_factory=dict)  #: the same by device model


class Host(Value):
    """One host of a pool, as port and scheduler have it."""

    id: str
    pool: str
    state: HostState | None = None  #: None: the scheduler does not know it
    leaving: bool = False  #: it drains by itself
    leases: int = 0  #: that are not ENDED
    launched_s: float | None = None  #: by the port


class View(Value):
    """All that a decision depends on beside its memory."""

    demand: tuple[Demand, ...] = ()
    hosts: tuple[Host, ...] = ()
    #: Hosts that each pool has been asked to have, by offer; those without a host have not come.
    sizes: Mapping[str, int] = field(default_factory=dict)
    #: Reasons why the port cannot deliver now, by offer.
    refusals: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------- what is remembered


class HostMemory(Value):
    """The memory of one host."""

    since_s: float  #: launched, or first seen
    #: Pauses since then (since `away_since_s`, if it is away): it could not join or come back.
    missed_s: float = 0.0
    joined: bool = False  #: the scheduler has known it
    idle_since_s: float | None = None
    away_since_s: float | None = None  #: it had joined, and is lost or unknown to the scheduler
    draining: bool = False  #: the fleet has drained it
    stopped_s: float | None = None  #: when the fleet last stopped it


class PoolMemory(Value):
    """The memory of one pool."""

    group: str = ""  #: at the port: hosts of a pool without an offer are found there
    usd_per_h: float = 0.0  #: of a host: those of a pool without an offer go on costing it
    asked_s: float | None = None  #: since when it has fewer hosts than it was asked to have
    skip_until_s: float = 0.0
    failures: int = 0  #: hosts in a row that never joined
    starts_s: tuple[float, ...] = ()  #: newest last
    active_s: float | None = None  #: the last time that it had a lease or work
    #: Most hosts at work in each hour of the day, averaged over days; for the forecast.
    hours: tuple[float, ...] = ()
    hour: int = -1  #: hour since the epoch that is being counted
    peak: int = 0  #: most hosts at work in it


class Memory(Value):
    """Passed from one decision to the next. Without it hosts are kept a little longer."""

    hosts: Mapping[str, HostMemory] = field(default_factory=dict)
    pools: Mapping[str, PoolMemory] = field(default_factory=dict)
    month: str = ""  #: "2026-11", UTC
    spent_usd: float = 0.0  #: in that month, by the prices of the offers
    at_s: float | None = None  #: of the decision before
    paused: bool = False  #: the decision before came after a pause of fleet or scheduler


# ---------------------------------------------------------------------- what is to be done


class Reason(StrEnum):
    """Why a host is started or ended."""

    DEMAND = "demand"  #: requests wait
    MINIMUM = "minimum"
    BUFFER = "buffer"
    POLICY = "policy"  #: fixed or forecast
    IDLE = "idle"
    NEVER_JOINED = "never_joined"
    LOST = "lost"  #: silent, its leases have ended
    DRAINED = "drained"  #: empty now
    NOT_DELIVERED = "not_delivered"  #: the hosts asked for did not come
    NOT_NEEDED = "not_needed"  #: nothing waits for them any more
    RETIRED = "retired"  #: no offer has its pool
    ABOVE_MAX = "above_max"  #: its offer allows fewer hosts than before
    TOO_DEAR = "too_dear"  #: all hosts cost more than is allowed


Values = Mapping[str, str | float | int]


class Start(Value, tag="start"):
    """Let the pool have at least this many hosts."""

    offer: str
    size: int  #: absolute
    reason: Reason
    values: Values = field(default_factory=dict)


class Withdraw(Value, tag="withdraw"):
    """Ask for no more hosts of the pool than have come."""

    offer: str
    reason: Reason
    values: Values = field(default_factory=dict)


class Drain(Value, tag="drain"):
    """Let the scheduler grant nothing on the host any more."""

    host: str
    reason: Reason
    values: Values = field(default_factory=dict)


class Stop(Value, tag="stop"):
    """End the host: it has no lease and gets none."""

    host: str
    reason: Reason
    values: Values = field(default_factory=dict)


Action = Start | Withdraw | Drain | Stop


class NoticeCode(StrEnum):
    """The kind of a notice to the operator."""

    HOUR_NEAR = "hour_near"  #: 80 % of usd_per_hour_max
    HOUR_FULL = "hour_full"  #: a host is wanted that usd_per_hour_max does not allow
    MONTH_NEAR = "month_near"  #: 80 % of usd_per_month_max is spent
    MONTH_FULL = "month_full"  #: nothing new until the month ends
    SKIPPED = "skipped"  #: an offer is left out for a while
    POOL_FULL = "pool_full"  #: requests wait for hosts beyond `max`
    NO_OFFER = "no_offer"  #: requests wait that no offer could serve


class Notice(Value):
    """One thing that an operator should know."""

    code: NoticeCode
    values: Values = field(default_factory=dict)


class Decision(Value):
    """Actions for now, notices, and the memory for the next decision."""

    actions: tuple[Action, ...]
    notices: tuple[Notice, ...]
    memory: Memory
