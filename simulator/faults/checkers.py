"""The invariants: after every decision, at every host, and when all jobs are over."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.protocol import changes as to
from simulator.faults.advance_checker import AdvanceChecker
from simulator.faults.fleet_checker import FleetChecker
from simulator.faults.floor_checker import FloorChecker
from simulator.faults.preemption_checker import PreemptionChecker
from simulator.faults.record_checker import RecordChecker
from simulator.faults.tenant_usage import TenantUsage
from simulator.invariants import check


class Violation(AssertionError):
    """An invariant does not hold; the message names it and its subject."""


@dataclass(slots=True)
class Checker:
    """Collects the trace and checks every decision."""

    usage: TenantUsage
    jobs: RecordChecker = field(default_factory=RecordChecker)
    preemptions: PreemptionChecker = field(default_factory=PreemptionChecker)
    advance: AdvanceChecker = field(default_factory=AdvanceChecker)
    fleet: FleetChecker = field(default_factory=FleetChecker)
    floors: FloorChecker = field(default_factory=FloorChecker)
    violation: Violation | None = None  #: the first one of the run
    last_start: dict[str, int] = field(default_factory=dict)  #: job → attempt without a device
    fence: int = 0
    decisions: int = 0
    _trace: hashlib._Hash = field(default_factory=hashlib.sha256)

    def note(self, *words: object) -> None:
        """Add one line to the trace; two equal runs have the same hash of it."""
        self._trace.update(" ".join(map(str, words)).encode() + b"\n")

    @property
    def trace(self) -> str:
        return str(self._trace.hexdigest()[:16])

    def started(self, job: str, attempt: int) -> None:
        """The user's code of an attempt without a device starts: once, and no later than the next.

        Raises Violation, in the function: it is kept as well.
        """
        if attempt <= self.last_start.get(job, 0):
            text = f"{job}: attempt {attempt} starts after {self.last_start[job]}"
            self.violation = self.violation or Violation(text)
            raise self.violation
        self.last_start[job] = attempt

    def core_failed(self, event: object, error: Exception) -> Violation:
        """The violation of an error of the core, kept: its caller may be a replica."""
        found = Violation(f"at {type(event).__name__} the core failed: {error!r}")
        self.violation = self.violation or found
        return found

    def scheduler_decided(
        self, machine: SchedulerMachine, event: on.Event, entries: Sequence[to.Entry]
    ) -> None:
        """Invariants of the core, and fences that only rise, over every restart.

        Raises Violation in the caller; that may be a replica, so it is kept as well.
        """
        try:
            self._check(machine, event, entries)
        except Violation as violation:
            self.violation = self.violation or violation
            raise

    def _check(
        self, machine: SchedulerMachine, event: on.Event, entries: Sequence[to.Entry]
    ) -> None:
        self.decisions += 1
        broken = check(machine.state)
        if broken:
            raise Violation(f"after {type(event).__name__}: {broken}")
        if isinstance(event, on.Asked):
            self.jobs.silent.discard(event.session)
        beyond = self.floors.note(machine.state, event, entries)
        beyond += [text for entry in entries for text in self.usage.note(entry)]
        wall_s = getattr(event, "wall_s", 0.0)
        beyond += [text for entry in entries for text in self.jobs.note(entry, wall_s)]
        by_host = isinstance(event, on.HostAsked)
        for entry in entries:
            beyond += self.preemptions.note(entry, wall_s, by_host=by_host)
            beyond += self.advance.note(entry)
            self.fleet.note(entry)
        if beyond:
            raise Violation(f"after {type(event).__name__}: {beyond}")
        for part in [part for entry in entries for part in entry.parts]:
            lease = getattr(part, "lease", None)
            fence = getattr(lease, "fence", None)
            if type(part).__name__ == "LeaseGranted" and fence is not None:
                if fence <= self.fence:
                    raise Violation(f"fence {fence} granted after {self.fence}")
                self.fence = fence
        self.note("scheduler", type(event).__name__, len(entries))
