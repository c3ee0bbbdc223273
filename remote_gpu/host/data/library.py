"""The data sets of one host and which of them make room for others: pure rules.

A set's value is the number of its uses above a level, and the level rises to the value of each set
that is evicted: a set that was used often stays longer than one used once, and no longer than its
uses are recent (LFU with dynamic ageing, Arlitt et al. 2000). Each use counts by the seconds that a
byte costs to fetch again, relative to the host's rate, so that a set of a slow source stays longer.
One that a lease has is never evicted. A set whose fetch was broken off counts with its whole size:
its parts are used when it is fetched again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from corekit.values import Value, replace

#: Of the seconds and bytes of earlier fetches, at each newer one.
_DECAY = 0.7
#: A shorter fetch teaches nothing about the rate.
_RATE_BYTES_MIN = 64 << 10
#: The least rate of a fetch that no lease needs, in each period of so many seconds.
LEAST_BYTES_PER_S, PACE_S = 64 << 10, 60.0


class KeptSet(Value):
    """One set on the disk, whole or begun."""

    key: str
    origin: str  #: bucket or server: fetches from there have one rate
    bytes: int  #: of the whole set
    only_file: str = ""  #: the path of its only file; "" = it is a folder
    whole: bool = False  #: False: a fetch of it is under way, or was broken off
    here_bytes: int = 0
    value: float = 0.0
    used_s: float = 0.0  #: wall clock of the last use; decides among equal values

    def grown(self, here_bytes: int, *, whole: bool = False) -> KeptSet:
        """So many bytes of it are here; `whole`: all of them, which is its size then."""
        size_bytes = here_bytes if whole else max(self.bytes, here_bytes)
        return replace(self, here_bytes=here_bytes, whole=whole, bytes=size_bytes)


class Room(NamedTuple):
    """The sets to evict for another one."""

    evict: tuple[str, ...]
    missing_bytes: int  #: that no eviction frees; 0 = there is room


class Rates:
    """The learned rates of fetches, in bytes per second, by origin."""

    def __init__(self) -> None:
        self._learned: dict[str, tuple[float, float]] = {}  #: bytes and seconds, decayed

    def learn(self, origin: str, size_bytes: int, seconds: float) -> None:
        """A fetch brought so many bytes in so many seconds."""
        if size_bytes >= _RATE_BYTES_MIN and seconds > 0:
            old_bytes, old_s = self._learned.get(origin, (0.0, 0.0))
            self._learned[origin] = (old_bytes * _DECAY + size_bytes, old_s * _DECAY + seconds)

    def of(self, origin: str) -> float | None:
        """The rate of an origin, else that of all; None = nothing is known."""
        known = self._learned.get(origin)
        return self.whole if known is None else known[0] / known[1]

    @property
    def whole(self) -> float | None:
        """The rate of all fetches of the host."""
        seconds = sum(seconds for _, seconds in self._learned.values())
        return sum(size for size, _ in self._learned.values()) / seconds if seconds else None


class Pace:
    """The rate of one fetch: one below the least is ended once no lease needs its set."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._since_bytes = 0

    def is_slow(self, now_s: float, done_bytes: int) -> bool:
        """True where the last period, which is over, had fewer bytes than the least rate."""
        if (seconds := now_s - self._since_s) < PACE_S:
            return False
        brought_bytes = done_bytes - self._since_bytes
        self._since_s, self._since_bytes = now_s, done_bytes
        return brought_bytes < seconds * LEAST_BYTES_PER_S


class Library:
    """The sets that one host keeps within its space."""

    def __init__(self, space_bytes: int) -> None:
        self.space_bytes = space_bytes
        self.sets: dict[str, KeptSet] = {}
        self.rates = Rates()
        self.level = 0.0  #: the value of the set evicted last

    @property
    def used_bytes(self) -> int:
        """Of all sets, those that are fetched with their whole size."""
        return sum(one.bytes for one in self.sets.values())

    def load(self, sets: Iterable[KeptSet]) -> None:
        """Take up what an earlier run left."""
        self.sets = {one.key: one for one in sets}
        self.level = min((one.value for one in self.sets.values()), default=0.0)

    def use(self, key: str, now_s: float) -> None:
        """A lease uses a set."""
        one = self.sets[key]
        mean, own = self.rates.whole, self.rates.of(one.origin)
        dearness = mean / own if mean and own else 1.0
        value = max(one.value, self.level) + dearness
        self.sets[key] = replace(one, value=value, used_s=now_s)

    def room(self, key: str, size_bytes: int, in_use: Collection[str]) -> Room:
        """The sets that one of this size evicts; none where all of it together is not enough."""
        others = [one for name, one in self.sets.items() if name != key]
        missing_bytes = sum(one.bytes for one in others) + size_bytes - self.space_bytes
        free = sorted(
            (one for one in others if one.key not in in_use),
            key=lambda one: (one.value, one.used_s, one.key),
        )
        evict: list[str] = []
        for one in free:
            if missing_bytes <= 0:
                break
            evict.append(one.key)
            missing_bytes -= one.bytes
        return Room((), missing_bytes) if missing_bytes > 0 else Room(tuple(evict), 0)

    def begin(self, one: KeptSet) -> None:
        """A fetch has begun, in the room that was made; what is known of an earlier one stays."""
        known = self.sets.get(one.key)
        value = self.level if known is None else known.value
        self.sets[one.key] = replace(one, value=value)

    def unbook(self, key: str, known: KeptSet | None) -> None:
        """A begun fetch does not take place; `known`: what was known of an earlier one."""
        del self.sets[key]
        if known is not None:
            self.sets[key] = known

    def arrived(self, key: str, here_bytes: int, *, whole: bool = False) -> None:
        """As `KeptSet.grown`."""
        self.sets[key] = self.sets[key].grown(here_bytes, whole=whole)

    def gone(self, key: str, *, evicted: bool = False) -> None:
        """A set is removed; `evicted`: to make room."""
        one = self.sets.pop(key)
        if evicted:
            self.level = max(self.level, one.value)
