"""One type per kind of id, and the seeded source that makes the random ones.

A core has no randomness of its own: it uses an `IdSource`, one independent stream per kind, so that
an additional id of one kind never changes the ids of another, and a replay gives the same ids.
"""

from __future__ import annotations

import random
from typing import NewType, TypeAlias

#: The type of `IdSource.stream`: cores name it and never import `random`.
RandomStream: TypeAlias = random.Random

HostId = NewType("HostId", str)
DeviceId = NewType("DeviceId", str)
LeaseId = NewType("LeaseId", str)
SessionId = NewType("SessionId", str)
JobId = NewType("JobId", str)
#: The id of a lease request: `<job>:<n>` for a job's attempt, any other name for a reservation.
AttemptId = NewType("AttemptId", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford base 32: no i, l, o, u
#: Two characters for every 10 bits: an id is one draw and a few look-ups.
_PAIRS = tuple(left + right for left in _ALPHABET for right in _ALPHABET)

_USUAL = 12  #: characters of an id: 60 bits


def attempt_id(job: JobId, number: int) -> AttemptId:
    """The id of one attempt of a job."""
    return AttemptId(f"{job}:{number}")


def split_attempt(attempt: AttemptId) -> tuple[JobId, int]:
    """The job and the attempt's number. Raises ValueError for an id without a number."""
    job, _, number = attempt.rpartition(":")
    if not job:
        raise ValueError(f"{attempt!r} is not an attempt id: write <job id>:<number>")
    return JobId(job), int(number)


class IdSource:
    """Seeded ids: the same seed gives the same ids on every machine."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed
        self._streams: dict[str, RandomStream] = {}

    def stream(self, kind: str) -> RandomStream:
        """The independent random stream of one kind (also used for jitter)."""
        if kind not in self._streams:
            # seeded by a string: stable
            self._streams[kind] = random.Random(f"{self._seed}/{kind}")
        return self._streams[kind]

    def new(self, kind: str, length: int = _USUAL) -> str:
        """Make an id like `lease-3v7k…`: 5 bits per character of an even `length`."""
        pair, bits = _PAIRS, self.stream(kind).getrandbits(5 * length)
        if length == _USUAL:  # one string at once
            return (
                f"{kind}-{pair[bits & 1023]}{pair[bits >> 10 & 1023]}{pair[bits >> 20 & 1023]}"
                f"{pair[bits >> 30 & 1023]}{pair[bits >> 40 & 1023]}{pair[bits >> 50]}"
            )
        pairs = [pair[bits >> shift & 1023] for shift in range(0, 5 * length, 10)]
        return f"{kind}-{''.join(pairs)}"
