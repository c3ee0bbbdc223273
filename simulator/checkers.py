"""What must hold: after every decision, at every host, and when everything is quiet again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.core.invariants import check
from gpu_scheduler.core.machine import SchedulerMachine
from simulator.books import TenantUsage
from simulator.job_books import RecordChecker


class Violation(AssertionError):
    """An invariant does not hold; the message says which and for whom."""


@dataclass(slots=True)
class Checker:
    """Collects the trace and looks at every decision."""

    books: TenantUsage
    jobs: RecordChecker = field(default_factory=RecordChecker)
    violation: Violation | None = None  #: the first, wherever it was raised
    fence: int = 0
    decisions: int = 0
    _trace: Any = field(default_factory=hashlib.sha256)

    def note(self, *words: object) -> None:
        """One line of the trace; its hash tells whether two runs were the same."""
        self._trace.update(" ".join(map(str, words)).encode() + b"\n")

    @property
    def trace(self) -> str:
        return str(self._trace.hexdigest()[:16])

    def scheduler_decided(
        self, machine: SchedulerMachine, event: object, entries: Sequence[Any]
    ) -> None:
        """Invariants of the core, and fences that only rise, over every restart.

        Raises Violation into whoever asked; that may be a replica, so it is kept as well.
        """
        try:
            self._judge(machine, event, entries)
        except Violation as violation:
            self.violation = self.violation or violation
            raise

    def _judge(self, machine: SchedulerMachine, event: object, entries: Sequence[Any]) -> None:
        self.decisions += 1
        broken = check(machine.state)
        if broken:
            raise Violation(f"after {type(event).__name__}: {broken}")
        beyond = [text for entry in entries for text in self.books.note(entry)]
        wall_s = getattr(event, "wall_s", 0.0)
        beyond += [text for entry in entries for text in self.jobs.note(entry, wall_s)]
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
