"""Descriptors that can be read: any number of them, whatever their numbers."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class _Descriptor(Protocol):
    def fileno(self) -> int: ...


T = TypeVar("T", bound=int | _Descriptor)


def readable(descriptors: Iterable[T], wait_s: float | None = None) -> list[T]:
    """Those with data, an end or an error; waits for the first one, at most `wait_s` (None: ever).

    `wait_s` is rounded up to milliseconds. Raises ValueError for a closed one. Unlike
    `select.select`, which fails in a process with more than 1,024 open files.
    """
    poll = select.poll()
    found = {one if isinstance(one, int) else one.fileno(): one for one in descriptors}
    for number in found:
        poll.register(number, select.POLLIN)
    ready = poll.poll(None if wait_s is None else wait_s * 1000)
    return [found[number] for number, _ in ready]
