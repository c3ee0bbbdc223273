"""The memory of the API: the newest submissions, and what is counted of each key."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.core.admission.rates import Rates
from orchgpu.jobs.uploaded import Submitted

#: Requests of one key; ten seconds of them may come at once.
REQUESTS_OF_KEY_PER_S = 50.0
#: Answers that wait for a job, of one key and of all: each holds a connection.
WAITING_OF_KEY_MAX = 64
WAITING_MAX = 512
#: Inputs on their way, of one key and of all: each is a temporary file.
INPUTS_OF_KEY_MAX = 16
INPUTS_MAX = 64
#: Inputs that were stored here: their jobs are known before they are received.
SUBMISSIONS_MAX = 10_000


class AtOnce:
    """Requests of one kind that are in progress, by party."""

    def __init__(self, each_max: int, total_max: int, what: str) -> None:
        self.each_max = each_max
        self.total_max = total_max
        self._what = what
        self._running: Counter[str] = Counter()

    @contextmanager
    def one(self, party: str) -> Iterator[None]:
        """Count one for the length of the block. Raises EXHAUSTED above a limit."""
        if self._running[party] >= self.each_max or self._running.total() >= self.total_max:
            text = f"too many {self._what} at once, at most {self.each_max} of a key and "
            text += f"{self.total_max} of all; nothing was stored: send the request again"
            raise AppError(ErrorCode.EXHAUSTED, text, retry_in_s=1.0)
        self._running[party] += 1
        try:
            yield
        finally:
            self._running[party] -= 1
            self._running += Counter()  # drops what is zero


@dataclass(slots=True)
class ApiState:
    """One for a server."""

    rates: Rates = field(default_factory=Rates)
    waiting: AtOnce = field(
        default_factory=lambda: AtOnce(WAITING_OF_KEY_MAX, WAITING_MAX, "requests wait")
    )
    inputs: AtOnce = field(
        default_factory=lambda: AtOnce(INPUTS_OF_KEY_MAX, INPUTS_MAX, "inputs come")
    )
    #: One for each request in progress that may be repeated, by its id.
    repeats: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    #: Of the session of this machine's programs, where the scheduler needs no keys.
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _submissions: OrderedDict[str, Submitted] = field(default_factory=OrderedDict)

    def note(self, submitted: Submitted) -> None:
        """Remember a submission by the ids that its job may have."""
        for job in submitted.job_ids:
            self._submissions[job] = submitted
            self._submissions.move_to_end(job)
        while len(self._submissions) > SUBMISSIONS_MAX:
            self._submissions.popitem(last=False)

    def submitted(self, job: str) -> Submitted | None:
        return self._submissions.get(job)

    def require_rate(self, party: str, now_s: float) -> None:
        """Raise EXHAUSTED above the rate of a party."""
        empty = self.rates.take([(party, REQUESTS_OF_KEY_PER_S)], now_s)
        if empty is not None:
            text = f"more than {REQUESTS_OF_KEY_PER_S:g} requests a second of one key; nothing was "
            raise AppError(ErrorCode.EXHAUSTED, f"{text}done", retry_in_s=empty.in_s)
