"""The restarts of dead programs, and their limit. Pure.

The pause doubles with every recent restart, so that a program which dies at once does not keep the
machine busy; a program with too many of them in one window is given up.
"""

from __future__ import annotations

from corekit.budget import Budget


class Restarts:
    """The restarts of all programs of one system. Times are monotonic seconds."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._recent: dict[str, list[float]] = {}
        self._counts: dict[str, int] = {}

    def after_death(self, program: str, now_s: float) -> float | None:
        """Count a restart. Seconds until it, or None: the program is given up."""
        since_s = now_s - self._budget.restart_window_s
        recent = [at_s for at_s in self._recent.get(program, ()) if at_s > since_s]
        if len(recent) >= self._budget.restarts_max:
            return None
        self._recent[program] = [*recent, now_s]
        self._counts[program] = self.count(program) + 1
        return min(self._budget.restart_base_s * 2.0 ** len(recent), self._budget.restart_s_max)

    def count(self, program: str) -> int:
        """The number of restarts since the system is up."""
        return self._counts.get(program, 0)
