"""One type per kind of id, and the seeded source that makes the random ones.

A core never draws randomness itself: it is given an `IdSource`, one independent stream per kind, so
that adding an id of one kind never changes the ids of another (a replay stays a replay).
"""

from __future__ import annotations

import random
from typing import NewType, TypeAlias

#: What `IdSource.stream` gives: cores name this type and never import `random` themselves.
RandomStream: TypeAlias = random.Random

HostId = NewType("HostId", str)
DeviceId = NewType("DeviceId", str)
LeaseId = NewType("LeaseId", str)
SessionId = NewType("SessionId", str)
JobId = NewType("JobId", str)
#: Of one request for a lease: `<job>:<n>` of a job's attempt, any other name of a reservation.
AttemptId = NewType("AttemptId", str)


def attempt_id(job: JobId, number: int) -> AttemptId:
    """The attempt of a job by its number."""
    return AttemptId(f"{job}:{number}")


def number_of(attempt: AttemptId) -> int:
    """The number of a job's attempt; the inverse of `attempt_id`."""
    return int(attempt.rpartition(":")[2])


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford base 32: no i, l, o, u
#: Two characters for every 10 bits: an id is made of a few look-ups and one draw.
_PAIRS = tuple(left + right for left in _ALPHABET for right in _ALPHABET)

_USUAL = 12  #: characters of an id: 60 bits


class IdSource:
    """Seeded ids: the same seed gives the same ids always, on every machine."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed
        self._streams: dict[str, RandomStream] = {}

    def stream(self, kind: str) -> RandomStream:
        """The independent random stream of one kind (also used for jitter)."""
        if kind not in self._streams:
            self._streams[kind] = random.Random(
                f"{self._seed}/{kind}"
            )  # seeded by a string: stable
        return self._streams[kind]

    def new(self, kind: str, length: int = _USUAL) -> str:
        """A new id like `lease-3v7k…`: 5 bits per character after the prefix; an even `length`."""
        pair, bits = _PAIRS, self.stream(kind).getrandbits(5 * length)
        if length == _USUAL:  # one text at once
            return (
                f"{kind}-{pair[bits & 1023]}{pair[bits >> 10 & 1023]}{pair[bits >> 20 & 1023]}"
                f"{pair[bits >> 30 & 1023]}{pair[bits >> 40 & 1023]}{pair[bits >> 50]}"
            )
        pairs = [pair[bits >> shift & 1023] for shift in range(0, 5 * length, 10)]
        return f"{kind}-{''.join(pairs)}"
