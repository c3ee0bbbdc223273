"""The scheduler's state: the only mutable object of the core.

Its durable part changes in `apply.py` alone, by the parts of an entry; the rest (silence clocks,
passed-over requests, bypasses, timers) is rebuilt from life after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from corekit.ids import AttemptId, JobId, LeaseId, SessionId
from gpu_scheduler.core.admission.rates import Rates
from gpu_scheduler.core.admission.tenants import Amount, Tenants
from gpu_scheduler.core.admission.usage_counts import UsageCounts
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.freed_capacity import FreedCapacity
from gpu_scheduler.core.queue.queue import WaitingQueue
from gpu_scheduler.core.timers import Timers
from gpu_scheduler.model import Lease, Record, Request, Step
from gpu_scheduler.parameters import DEFAULT, Given, Parameters, in_force
from gpu_scheduler.protocol.changes import Unknown, Waiting

#: People ask why within minutes; a storm of refusals must not fill the memory.
REFUSED_MAX = 1000


@dataclass(slots=True)
class LeaseEntry:
    """A lease that is not ENDED, with what is needed to serve it."""

    lease: Lease
    request: Request
    amount: Amount  #: of all its shares together
    session: SessionId | None  #: who reserved it; None for a job's: its record's owner
    waiting_since_s: float  #: wall clock: place of its request, should nobody take it
    lease_s: float | None  #: it ends this long after its session opened, or a deadline one began
    granted_s: float  #: wall clock
    accepted: bool
    connect_by_s: float | None = None  #: staged: length from then to the first session
    active_s: float | None = None  #: wall clock: its length began, if it has one
    deadline_s: float | None = None  #: monotonic; not durable

    @property
    def staged(self) -> bool:
        return self.connect_by_s is not None


@dataclass(slots=True)
class HeadReservation:
    """How often the present head of the queue was passed, and what is kept for it."""

    attempt: AttemptId | None = None
    count: int = 0
    kept: tuple[str, ...] = ()


@dataclass(slots=True)
class State:
    """Everything. Dicts keep their order, so the same history gives the same decisions."""

    epoch: int = 0
    run: str = ""  #: of this epoch
    build: str = ""  #: version of the ssgmd of this epoch
    position: int = 0  #: of the journal: parts ever applied; a grant's is its fence
    configured: Parameters = field(default_factory=Parameters)  #: as the daemon was started
    overrides: dict[str, Given] = field(default_factory=dict)  #: set since, by name
    ignored: Mapping[str, str] = field(default_factory=dict)  #: overrides not in force, and why
    inventory: Inventory = field(default_factory=Inventory)
    queue: WaitingQueue = field(init=False)
    tenants: Tenants = field(default_factory=Tenants)
    usage_counts: UsageCounts = field(default_factory=UsageCounts)
    leases: dict[LeaseId, LeaseEntry] = field(default_factory=dict)
    lease_of: dict[str, LeaseId] = field(default_factory=dict)  #: attempt → its live lease
    records: dict[JobId, Record] = field(default_factory=dict)  #: oldest first
    owned: dict[SessionId, dict[JobId, None]] = field(default_factory=dict)
    orphans: dict[JobId, None] = field(default_factory=dict)  #: longest ownerless first
    unknown: list[Unknown] = field(default_factory=list)  #: of a newer version, kept for it
    # --- not durable
    rates: Rates = field(default_factory=Rates)
    sessions: dict[SessionId, float] = field(default_factory=dict)  #: monotonic: last mark_alive
    watchers: dict[SessionId, bool] = field(default_factory=dict)  #: do they see it all?
    head_reservation: HeadReservation = field(default_factory=HeadReservation)
    refused: dict[str, Waiting] = field(default_factory=dict)  #: by attempt, for `explain`
    freed_capacity: FreedCapacity = field(default_factory=FreedCapacity)
    timers: Timers = field(default_factory=Timers)
    has_room: bool = True  #: for grants in the journal
    parameters: Parameters = field(init=False)  #: what holds: `configured` with `overrides`

    def __post_init__(self) -> None:
        self.parameters = self.configured
        self.queue = WaitingQueue(self.parameters.aging_s)

    def set_parameter(self, name: str, value: Given) -> None:
        """Override a parameter, or take an override back.

        One that a newer version set and this one does not know is kept, but not in force.
        """
        overrides = {known: given for known, given in self.overrides.items() if known != name}
        if value != DEFAULT:
            overrides[name] = value
        self.parameters, self.ignored = in_force(self.configured, overrides)
        self.overrides = overrides
        self.queue.reorder(self.parameters.aging_s)

    def clear_freed(self) -> None:
        """Nobody waits who could be served by what came free."""
        self.inventory.freed.clear()
        self.freed_capacity.device_states.clear()
        self.queue.dirty.clear()

    def remember_refused(self, waiting: Waiting) -> None:
        """So that `explain` can say why, for as long as there are not `REFUSED_MAX` newer ones."""
        self.refused.pop(waiting.attempt, None)
        self.refused[waiting.attempt] = waiting
        if len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

    def live_lease(self, record: Record) -> LeaseEntry | None:
        """The lease of a record's newest attempt, if it is not over."""
        return None if record.lease is None else self.leases.get(record.lease)

    def set_record(self, record: Record) -> None:
        """Write a record and the two indexes of who acts for it."""
        self.usage_counts.record_changed(self.records.get(record.holder), record)
        self._disowned(record.holder)
        self.records[record.holder] = record
        if record.step is not Step.ENDED and record.owner is None:
            self.orphans.setdefault(record.holder)
            return
        self.orphans.pop(record.holder, None)
        if record.step is not Step.ENDED and record.owner is not None:
            self.owned.setdefault(SessionId(record.owner), {})[record.holder] = None

    def forget_record(self, holder: JobId) -> None:
        """Take a record out of the indexes and the state; idempotent."""
        old = self._disowned(holder)
        if old is not None:
            self.usage_counts.record_changed(old, None)
            self.orphans.pop(holder, None)
            del self.records[holder]

    def _disowned(self, holder: JobId) -> Record | None:
        """The record as it stands, out of the index of owners."""
        old = self.records.get(holder)
        if old is not None and old.owner is not None:
            theirs = self.owned.get(SessionId(old.owner), {})
            theirs.pop(holder, None)
            if not theirs:
                self.owned.pop(SessionId(old.owner), None)
        return old


class StateView(Protocol):
    """What a policy may read: the same objects, to look at only."""

    @property
    def parameters(self) -> Parameters: ...
    @property
    def inventory(self) -> Inventory: ...
    @property
    def queue(self) -> WaitingQueue: ...
    @property
    def tenants(self) -> Tenants: ...
    @property
    def leases(self) -> Mapping[LeaseId, LeaseEntry]: ...
    @property
    def head_reservation(self) -> HeadReservation: ...
