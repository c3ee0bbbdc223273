"""The writer of one run: puts items in their order, repeats what may pass, and ends at a loss.

`read_again` repeats single reads, for engines whose services fail now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from corekit.aio.backoff import Backoff
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.log.port import Log

T = TypeVar("T")
P = ParamSpec("P")

#: Exit status of a daemon whose log another one continues (docs/reference/exit-codes.md).
SUPERSEDED_STATUS = 10


class LogSuperseded(AppError):
    """Another run owns an item that this one tried to put: the daemon ends."""

    def __init__(self, where: str, seq: int) -> None:
        text = f"another ssgmd continues the log {where} from item {seq} on; this one has ended, "
        text += "and nothing that it had not written is answered. Hosts refuse its epoch"
        super().__init__(ErrorCode.CONFLICT, text, seq=seq)

    @property
    def exit_status(self) -> int:
        return SUPERSEDED_STATUS


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """Bounds of the repetitions of one put."""

    within_s: float = 30.0  #: after this the daemon ends
    first_s: float = 0.05
    most_s: float = 2.0


@dataclass(slots=True)
class WriterFigures:
    """Counters of a writer."""

    puts: int = 0
    retries: int = 0
    bytes: int = 0


class LogWriter:
    """Puts one item at a time. After any error it must not be used again."""

    def __init__(
        self,
        log: Log,
        where: str,
        limits: RetryLimits,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._where = where
        self._limits = limits
        self._sleep = sleep
        self._now_s = now_s
        self._is_first = True
        self._failed: AppError | None = None
        self.figures = WriterFigures()

    def put(self, seq: int, data: bytes) -> None:
        """Own the item once this returns.

        Raises LogSuperseded when another run owns it, the log's error when it is final or has
        lasted too long. A call after an error raises the same one again.
        """
        if self._failed is not None:
            raise self._failed
        try:
            self.repeated(lambda: self._put(seq, data))
        except AppError as error:
            self._failed = error
            raise
        self._is_first = False
        self.figures.puts += 1
        self.figures.bytes += len(data)

    def _put(self, seq: int, data: bytes) -> None:
        """One try. An earlier one may have stored the item although its answer was lost.

        The run's id in the data distinguishes it from an item of any other writer.
        """
        won = self._log.put_if_absent(seq, data) or self._stored(seq) == data
        # without an item of its own before, the number may be one of the past (port.py)
        if not won or (self._is_first and self._log.newest_snapshot_seq() >= seq):
            raise LogSuperseded(self._where, seq)

    def _stored(self, seq: int) -> bytes | None:
        return next((data for _, data in self._log.read(seq)), None)

    def repeated(self, work: Callable[[], T]) -> T:
        """The value of calls to the log, repeated within the limits. Raises the log's error."""
        try:
            return work()
        except AppError as error:  # the rest takes longer than a put into a file
            return self._repeated(work, error)

    def _repeated(self, work: Callable[[], T], error: AppError) -> T:
        until_s = self._now_s() + self._limits.within_s
        backoff = Backoff(self._limits.first_s, self._limits.most_s)
        while True:
            pause_s = backoff.next_s()
            if not error.retryable or self._now_s() + pause_s > until_s:
                raise error
            self.figures.retries += 1
            self._sleep(pause_s)
            try:
                return work()
            except AppError as again:
                error = again


#: A service that fails one call in 25 then fails one read in 15,000.
READ_TRIES = 3
_FIRST_S, _MOST_S = 0.02, 0.2


def read_again(read: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """The value of a read, which is repeated twice when its answer is that the service is away.

    One that took its whole time is not repeated: a reader must know by then. Raises the last error.
    """
    backoff = Backoff(_FIRST_S, _MOST_S)
    for _ in range(READ_TRIES - 1):
        try:
            return read(*values, **named)
        except AppError as error:
            if error.code is not ErrorCode.UNAVAILABLE:
                raise
            time.sleep(backoff.next_s())
    return read(*values, **named)
