"""Execution environments: assignment to invocations, warm reuse (last in, first out), limits.

One environment serves one invocation at a time. A function may use its reserved concurrency, or
the concurrency of the account that is not reserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Environment:
    """One execution environment."""

    id: int
    function: str
    revision: str  #: of the code and settings it was started with; an older one is never reused
    busy: bool = True
    idle_since_s: float = 0.0


#: Lambda's default quota of concurrent runs in one account and region.
CONCURRENCY_QUOTA = 1000
#: Lambda leaves so much of it to functions that reserve none.
UNRESERVED_MIN = 100


def unreserved_min(concurrency_max: int) -> int:
    """The runs that an account of this limit leaves to functions that reserve none."""
    return min(UNRESERVED_MIN, concurrency_max // 2)


@dataclass(slots=True, kw_only=True)
class EnvironmentPool:
    """Every environment of an account. `concurrency_max` is the account's limit."""

    concurrency_max: int = CONCURRENCY_QUOTA
    idle_s_max: float = 600.0  #: an idle one is ended after this (AWS: minutes, undocumented)
    idle_max: int = 32  #: idle environments; each holds the memory of this one machine
    reserved: dict[str, int] = field(default_factory=dict)  #: by function
    _environments: dict[int, Environment] = field(default_factory=dict)
    _idle: dict[str, list[int]] = field(default_factory=dict)  #: by function, newest last
    _made: int = 0

    def acquire(self, function: str, revision: str) -> tuple[Environment, bool] | None:
        """A warm environment and False, a new one and True, or None: throttled."""
        if self.busy(function) >= self._limit(function):
            return None
        idle = self._idle.get(function, [])
        for at in range(len(idle) - 1, -1, -1):
            environment = self._environments[idle[at]]
            if environment.revision == revision:
                del idle[at]
                environment.busy = True
                return environment, False
        self._made += 1
        environment = Environment(id=self._made, function=function, revision=revision)
        self._environments[environment.id] = environment
        return environment, True

    def release(self, now_s: float, environment: int) -> None:
        """Return an environment after its invocation; it may be reused."""
        released = self._environments[environment]
        released.busy = False
        released.idle_since_s = now_s
        self._idle.setdefault(released.function, []).append(environment)

    def discard(self, environment: int) -> None:
        """Remove an environment that ended; an unknown one was discarded before."""
        ended = self._environments.pop(environment, None)
        if ended is not None and not ended.busy:
            self._idle[ended.function].remove(environment)

    def outdated(self, now_s: float, revisions: Mapping[str, str]) -> list[int]:
        """Idle environments to end: idle for too long, too many, of old code, of a deleted
        function; the ones that are idle longest first.
        """
        idle = sorted(
            (e for e in self._environments.values() if not e.busy), key=lambda e: e.idle_since_s
        )
        surplus = len(idle) - self.idle_max
        return [
            e.id
            for at, e in enumerate(idle)
            if at < surplus
            or now_s - e.idle_since_s >= self.idle_s_max
            or revisions.get(e.function) != e.revision
        ]

    def busy(self, function: str) -> int:
        """Number of running invocations of the function."""
        return sum(1 for e in self._environments.values() if e.busy and e.function == function)

    def __len__(self) -> int:
        return len(self._environments)

    def _limit(self, function: str) -> int:
        own = self.reserved.get(function)
        if own is not None:
            return own
        others = sum(1 for e in self._environments.values() if e.busy and self._shares(e, function))
        least = unreserved_min(self.concurrency_max)
        shared = max(self.concurrency_max - sum(self.reserved.values()), least)
        return max(shared - others, 0)

    def _shares(self, environment: Environment, function: str) -> bool:
        return environment.function != function and environment.function not in self.reserved
