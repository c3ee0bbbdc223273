"""A log in memory, whose answers may be lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.log.port import LogLimits, Snapshot


class MemoryLog:
    """`gpu_scheduler.daemon.log.port.Log`; the items outlive every scheduler."""

    def __init__(self, is_lost: Callable[[], bool]) -> None:
        """`is_lost`: whether the answer to the next put is lost, although it was stored."""
        self.items: dict[int, bytes] = {}
        self._is_lost = is_lost
        self.limits = LogLimits(item_bytes_max=2**16, snapshot_after=2**30)

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        won = self.items.setdefault(seq, data) is data
        if self._is_lost():
            raise AppError(ErrorCode.UNAVAILABLE, "the answer is lost")
        return won

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        while (data := self.items.get(from_seq)) is not None:
            yield from_seq, data
            from_seq += 1

    def trim(self, to_seq: int, keep: Collection[int] = ()) -> None:
        raise NotImplementedError("this log keeps its whole history, for the checks")

    def put_snapshot(self, seq: int, data: bytes) -> None:
        raise NotImplementedError("as `trim`")

    def newest_snapshot(self) -> Snapshot | None:
        return None

    def newest_snapshot_seq(self) -> int:
        return 0

    def interrupt(self) -> None:
        """Nothing: no call hangs."""

    def close(self) -> None:
        """Nothing is open."""
