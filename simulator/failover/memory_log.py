"""A log in memory, whose answers may be lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.log.port import LogLimits, Snapshot

ITEM_BYTES_MAX = 2**16


class MemoryLog:
    """`gpu_scheduler.daemon.log.port.Log`; the items outlive every scheduler."""

    def __init__(
        self, is_lost: Callable[[], bool] = lambda: False, snapshot_after: int = 2**30
    ) -> None:
        """`is_lost`: whether the answer to a call that writes is lost, although it was done."""
        self.limits = LogLimits(item_bytes_max=ITEM_BYTES_MAX, snapshot_after=snapshot_after)
        self.items: dict[int, bytes] = {}
        self.snapshots: dict[int, bytes] = {}
        self.history: dict[int, bytes] = {}  #: the first item of each number, trimmed or not
        self._is_lost = is_lost

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        if len(data) > ITEM_BYTES_MAX:
            raise invalid(f"an item has at most {ITEM_BYTES_MAX} bytes, got {len(data)}")
        is_first = seq not in self.items
        won = self.items.setdefault(seq, data) is data and is_first
        self.history.setdefault(seq, data)
        self._answer()
        return won

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        while (data := self.items.get(from_seq)) is not None:
            yield from_seq, data
            from_seq += 1

    def last_seq(self, after: int) -> int:
        return max((seq for seq in self.items if seq > after), default=after)

    def trim(self, to_seq: int, keep: Collection[int] = ()) -> None:
        for seq in [one for one in self.items if one <= to_seq and one not in keep]:
            self.items.pop(seq, None)
        for seq in [one for one in self.snapshots if one < to_seq]:
            self.snapshots.pop(seq, None)
        self._answer()

    def put_snapshot(self, seq: int, data: bytes) -> None:
        self.snapshots[seq] = data
        self._answer()

    def newest_snapshot(self) -> Snapshot | None:
        seq = self.newest_snapshot_seq()
        return Snapshot(seq, self.snapshots[seq]) if seq else None

    def newest_snapshot_seq(self) -> int:
        return max(self.snapshots, default=0)

    def interrupt(self) -> None:
        """Nothing: no call hangs."""

    def close(self) -> None:
        """Nothing is open."""

    def _answer(self) -> None:
        if self._is_lost():
            raise AppError(ErrorCode.UNAVAILABLE, "the answer is lost")
