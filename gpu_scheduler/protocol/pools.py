"""Pools of hosts that come and go, as a fleet reports them. All durations are relative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from corekit.units import format_duration
from corekit.values import Checked, Meta, Value, replace
from gpu_scheduler.model import COUNT_MAX, DeviceKind, MemoryMib, Name, Word

#: The most hosts of one pool, and the most pools of one report.
HOSTS_MAX, POOLS_MAX = 10_000, 200
#: The most states of hosts, and characters of a sentence.
_STATES_MAX, SENTENCE_CHARS_MAX = 20, 500

Hosts = Annotated[int, Meta(ge=0, le=HOSTS_MAX)]
#: Not bounded by the length of a lease: a fleet states them.
Seconds = Annotated[float, Meta(ge=0)]
Sentence = Annotated[str, Meta(max_length=SENTENCE_CHARS_MAX)]


class PoolView(Checked):
    """One pool: equal hosts, from `min` to `max`, that a fleet starts and ends."""

    name: Name
    kind: DeviceKind  #: of its devices
    model: Word = ""  #: "" = not stated
    devices: Annotated[int, Meta(ge=1, le=COUNT_MAX)] = 1  #: of each host
    memory_mib: MemoryMib  #: of each device
    usd_per_h: Annotated[float, Meta(ge=0)] = 0.0  #: of each host; only operators read it
    spot: bool = False
    min: Hosts = 0
    max: Hosts
    size: Hosts = 0  #: hosts that the provider was asked for
    #: Hosts that are there, by a word: starting, idle, busy, draining, stale, lost.
    states: Annotated[Mapping[Name, Hosts], Meta(max_length=_STATES_MAX)]
    start_s: Seconds  #: from the start of a host to its registration: learned, or as offered
    started_ago_s: Seconds | None = None  #: the host that is expected first; None = none starts
    ordered_ago_s: Seconds | None = None  #: hosts that have not come yet; None = all have come
    closed: Sentence = ""  #: the reason why it starts no host now; "" = it may

    @property
    def hosts(self) -> int:
        """Hosts that are there, in whatever state."""
        return sum(self.states.values())

    @property
    def expected_in_s(self) -> float | None:
        """Seconds until its next host registers, 0 for one that is late; None = none comes."""
        ago_s = self.ordered_ago_s if self.started_ago_s is None else self.started_ago_s
        return None if ago_s is None else max(0.0, self.start_s - ago_s)

    @property
    def text(self) -> str:
        """`pool a10g: 2 of 0 to 4 hosts, 1 busy, 1 starting, the next expected in 50 s`."""
        states = [f"{number} {state}" for state, number in sorted(self.states.items())]
        parts = [f"{self.hosts} of {self.min} to {self.max} hosts", *states]
        if (in_s := self.expected_in_s) is not None:
            due = f"expected in {format_duration(in_s)}" if in_s else "late"
            parts.append(f"the next {due}")
        return f"pool {self.name}: {', '.join(parts)}"

    def aged(self, by_s: float) -> PoolView:
        """The same, so many seconds after the report."""
        started_s, ordered_s = self.started_ago_s, self.ordered_ago_s
        return replace(
            self,
            started_ago_s=None if started_s is None else started_s + by_s,
            ordered_ago_s=None if ordered_s is None else ordered_s + by_s,
        )


class FleetView(Value):
    """The pools of all fleets that report to this scheduler."""

    pools: tuple[PoolView, ...]
    notices: tuple[str, ...] = ()  #: sentences for an operator
