"""The state of the scheduler: the only mutable object of the core.

Its durable part changes in `apply.py` alone, by the parts of an entry. The rest (silence timers,
unresponsive requests, the reservation for the head, timers) is rebuilt after a restart.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from corekit.ids import AttemptId, DeviceId, JobId, LeaseId, SessionId
from gpu_scheduler.core.admission.tenants import Accounts, Amount
from gpu_scheduler.core.inventory.available import DeviceOrder, FreedCapacity
from gpu_scheduler.core.inventory.fleets import Fleets
from gpu_scheduler.core.inventory.floors import Floors
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.eviction import Taken
from gpu_scheduler.core.state.learned_times import LearnedTimes
from gpu_scheduler.core.state.policy_memory import PolicyMemory
from gpu_scheduler.core.state.record_order import Order
from gpu_scheduler.core.state.timers import Timers
from gpu_scheduler.core.state.waiting_queue import WaitingQueue
from gpu_scheduler.model import Lease, Record, Request, Step
from gpu_scheduler.parameters import DEFAULT, Parameters, in_force
from gpu_scheduler.policy_parameters import Given, Parameterised
from gpu_scheduler.protocol.changes import PolicyRemembered, Unknown, Waiting

#: Refused requests that `explain` can still look up.
REFUSED_MAX = 1000
#: Most changes of a newer version that every snapshot keeps: the newest ones.
UNKNOWN_MAX = 1000


#: Stands for the request of a lease that ends because its host drains.
DRAINED = AttemptId("")
#: Of a lease that took no residents, as most do: all of them share it.
NO_RESIDENTS_TAKEN: Mapping[DeviceId, Taken] = MappingProxyType({})


@dataclass(slots=True)
class LeaseEntry:
    """A lease that is not ENDED, with its request and deadlines."""

    lease: Lease
    request: Request
    amount: Amount  #: total of all its shares
    session: SessionId | None  #: reserving session; None for a job: its record has the owner
    waiting_since_s: float  #: wall clock: restored to its request if the grant is not accepted
    lease_s: float | None  #: length from the first session, or from the start of a deadline lease
    granted_s: float  #: wall clock
    accepted: bool
    #: By device, while it has its shares: the residents that it took. Not durable: its hosts know.
    taken: Mapping[DeviceId, Taken]
    connect_by_s: float | None = None  #: staged: seconds from then to the first session
    active_s: float | None = None  #: wall clock: start of its length
    freed_s: float | None = None  #: wall clock: release of its shares; not in snapshots
    loading_s: float | None = None  #: as its hosts reported it; not in snapshots
    loaded_ahead_s: float | None = None  #: as its host reported it; not in snapshots
    deadline_s: float | None = None  #: monotonic; not durable
    #: The request for which it ends after a grace time, or `DRAINED`.
    preempted_for: AttemptId | None = None
    booked_s: float | None = None  #: wall clock; None: never granted ahead, or ahead now
    unbooked_s: float | None = None  #: wall clock: it gave way, and waits again since then
    waited_s: float | None = None  #: its session waited this long for its shares
    new_sandbox: bool | None = None  #: its function started a sandbox; None = unknown
    overruns: bool = False  #: another one waited for its end for too long; not durable
    knocked: bool = False  #: granted ahead: its session waits for its shares; not durable

    @property
    def ahead(self) -> bool:
        """True: granted before its shares are free, and not booked yet."""
        return bool(self.lease.after)

    @property
    def held_since_s(self) -> float:
        """Wall clock: it has its shares since then."""
        return self.granted_s if self.booked_s is None else self.booked_s

    @property
    def staged(self) -> bool:
        return self.connect_by_s is not None


@dataclass(slots=True)
class FunctionAccount:
    """An account of a cloud, whose functions wait for devices."""

    sessions: dict[SessionId, None] = field(default_factory=dict)  #: whose functions run there
    ahead_max: int | None = None  #: leases ahead; None = no limit
    paused_until_s: float = 0.0  #: monotonic: none is granted ahead before


@dataclass(slots=True)
class HeadReservation:
    """The number of overtakes of the head of the queue, and the devices reserved for it."""

    attempt: AttemptId | None = None
    overtaken: int = 0
    devices: tuple[DeviceId, ...] = ()


@dataclass(frozen=True, slots=True)
class Leader:
    """The addresses that the ssgmd of an epoch advertises; "" = none."""

    socket: str = ""
    http: str = ""


@dataclass(slots=True)
class State(Accounts):
    """The whole state. Dicts keep insertion order, so the same events give the same decisions."""

    epoch: int = 0
    run: str = ""  #: random id of this epoch
    build: str = ""  #: version of the ssgmd of this epoch
    leader: Leader = Leader()
    master_key: str = ""  #: fingerprint of its master key; "" = not journalled
    epoch_ended: bool = False  #: it stopped in order
    position: int = 0  #: journal position: number of parts ever applied; the fence of a grant
    configured: Parameters = field(default_factory=Parameters)  #: as the daemon was started
    #: Installed policies by name: a parameter is valid if its policy has it.
    installed: Mapping[str, Parameterised] = field(default_factory=dict)
    overrides: dict[str, Given] = field(default_factory=dict)  #: by name of the parameter
    ignored: Mapping[str, str] = field(default_factory=dict)  #: overrides not in force, and why
    inventory: Inventory = field(default_factory=Inventory)
    queue: WaitingQueue = field(init=False)
    learned_times: LearnedTimes = field(default_factory=LearnedTimes)
    leases: dict[LeaseId, LeaseEntry] = field(default_factory=dict)
    lease_of: dict[str, LeaseId] = field(default_factory=dict)  #: attempt → its live lease
    #: Leases granted ahead by device; they hold no shares.
    ahead: dict[DeviceId, dict[LeaseId, None]] = field(default_factory=dict)
    #: (tenant, workload) → shares that leases of it hold; only those above zero.
    shares_of: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Ended records in the order in which they ended, others in the order of creation.
    records: dict[JobId, Record] = field(default_factory=dict)
    record_order: Order[JobId] = field(default_factory=Order)  #: that of `records`, for pages
    owned: dict[SessionId, dict[JobId, None]] = field(default_factory=dict)
    #: Sessions that ended while they packed jobs → these jobs; the inverse of
    #: `ended_owners`, but for ended jobs.
    struck: dict[SessionId, dict[JobId, None]] = field(default_factory=dict)
    orphans: dict[JobId, None] = field(default_factory=dict)  #: longest ownerless first
    #: By policy: the one in force, and those of a newer version that are unknown here.
    memories: dict[str, PolicyMemory] = field(default_factory=dict)
    #: Changes of a newer version.
    unknown: deque[Unknown] = field(default_factory=lambda: deque(maxlen=UNKNOWN_MAX))
    # --- not durable
    fleets: Fleets = field(default_factory=Fleets)
    floors: Floors = field(default_factory=Floors)
    sessions: dict[SessionId, float] = field(default_factory=dict)  #: last request, monotonic
    #: By name; a session without a name has one of its own.
    function_accounts: dict[str, FunctionAccount] = field(default_factory=dict)
    account_of: dict[SessionId, str] = field(default_factory=dict)
    watchers: dict[SessionId, bool] = field(default_factory=dict)  #: True: without redaction
    record_watchers: dict[SessionId, None] = field(default_factory=dict)
    head_reservation: HeadReservation = field(default_factory=HeadReservation)
    #: By waiting request: the devices on which leases end for it, and which are reserved for it.
    preemptions: dict[AttemptId, tuple[DeviceId, ...]] = field(default_factory=dict)
    refused: dict[str, Waiting] = field(default_factory=dict)  #: by attempt, for `explain`
    freed_capacity: FreedCapacity = field(default_factory=FreedCapacity)
    device_order: DeviceOrder = field(default_factory=DeviceOrder)
    timers: Timers = field(default_factory=Timers)
    ending: dict[LeaseId, None] = field(default_factory=dict)  #: leases that end soon
    ahead_counts: Counter[str] = field(default_factory=Counter)  #: of leases ahead, by event
    ahead_checked: int = 0  #: `availability_version` of the last check of leases ahead
    has_room: bool = True  #: in the journal, for grants
    wakes: bool = False  #: owners of jobs may be away

    def __post_init__(self) -> None:
        self.parameters = self.configured
        self.queue = WaitingQueue(self.parameters.aging_s)

    def set_parameter(self, name: str, value: Given) -> None:
        """Override a parameter, or remove an override.

        An override of a newer version that is unknown here is kept, but not in force.
        """
        overrides = {known: given for known, given in self.overrides.items() if known != name}
        if value != DEFAULT:
            overrides[name] = value
        self.parameters, self.ignored = in_force(self.configured, overrides, self.installed)
        self.overrides = overrides
        self.queue.reorder(self.parameters.aging_s)

    @property
    def memory(self) -> PolicyMemory:
        """The memory of the policy in force; an empty one before its first decision."""
        return self.memories.get(self.parameters.policy) or PolicyMemory(self.run)

    def remember(self, part: PolicyRemembered) -> None:
        """Update the memory of a policy, or drop it."""
        if part.dropped:
            self.memories.pop(part.policy, None)
            return
        memory = self.memories.setdefault(part.policy, PolicyMemory(part.seed))
        memory.seed, memory.draws = part.seed, part.draws
        memory.change(part.changed)

    def clear_freed(self) -> None:
        """Forget freed capacity: no waiting request can use it."""
        self.inventory.freed.clear()
        self.freed_capacity.device_states.clear()
        self.queue.dirty.clear()

    def remember_refused(self, waiting: Waiting) -> None:
        """Remember a refused request for `explain`, until there are `REFUSED_MAX` newer ones."""
        self.refused.pop(waiting.attempt, None)
        self.refused[waiting.attempt] = waiting
        if len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

    def live_lease(self, record: Record) -> LeaseEntry | None:
        """The live lease of a record's newest attempt."""
        return None if record.lease is None else self.leases.get(record.lease)

    def set_record(self, record: Record) -> None:
        """Write a record, and update the indexes of owners and of orphans."""
        self.usage_counts.record_changed(self.records.get(record.holder), record)
        old = self._disowned(record.holder)
        if old is not None and old.step is not Step.ENDED and record.step is Step.ENDED:
            del self.records[record.holder]  # history is ordered by end time
        if record.holder not in self.records:
            self.record_order.add(record.holder)
        self.records[record.holder] = record
        for session in record.ended_owners if record.step is not Step.ENDED else ():
            self.struck.setdefault(SessionId(session), {})[record.holder] = None
        if record.step is not Step.ENDED and record.owner is None:
            self.orphans.setdefault(record.holder)
            return
        self.orphans.pop(record.holder, None)
        if record.step is not Step.ENDED and record.owner is not None:
            self.owned.setdefault(SessionId(record.owner), {})[record.holder] = None

    def forget_record(self, holder: JobId) -> None:
        """Remove a record from the state and the indexes; idempotent."""
        old = self._disowned(holder)
        if old is not None:
            self.usage_counts.record_changed(old, None)
            self.orphans.pop(holder, None)
            del self.records[holder]
            self.record_order.remove(holder)

    def _disowned(self, holder: JobId) -> Record | None:
        """Remove a record from the indexes by sessions, and return it."""
        old = self.records.get(holder)
        if old is not None and old.owner is not None:
            _remove(self.owned, SessionId(old.owner), holder)
        for session in () if old is None else old.ended_owners:
            _remove(self.struck, SessionId(session), holder)
        return old


def _remove(index: dict[SessionId, dict[JobId, None]], session: SessionId, holder: JobId) -> None:
    theirs = index.get(session, {})
    theirs.pop(holder, None)
    if not theirs:
        index.pop(session, None)
