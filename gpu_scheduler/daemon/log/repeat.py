"""Repetition of single reads, for engines whose services fail now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from corekit.aio.backoff import Backoff
from corekit.errors import AppError, ErrorCode

T = TypeVar("T")
P = ParamSpec("P")

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
