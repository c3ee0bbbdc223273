"""The journal as the daemon uses it, whatever it is stored in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_scheduler.protocol.changes import Entry, Part


@dataclass(slots=True)
class JournalFigures:
    """Counters for /metrics."""

    engine: str = "file"  #: scheme of the log's address
    syncs: int = 0
    sync_s: float = 0.0  #: spent in write + sync, summed
    entries: int = 0
    compactions: int = 0
    retries: int = 0  #: puts that were repeated
    bytes: int = 0  #: written, without snapshots


class SchedulerJournal(Protocol):
    """Everything durable of one scheduler. `close` at the end, also of one that never recovered."""

    #: The state as parts, for compaction; to be set after recovery.
    snapshot: Callable[[], Iterable[Part]] | None
    compact_bytes_min: int  #: it is compacted above this size

    @property
    def figures(self) -> JournalFigures: ...

    @property
    def name(self) -> str:
        """Path or address, for messages; without credentials."""
        ...

    @property
    def remedy(self) -> str:
        """The command that repairs it."""
        ...

    @property
    def size(self) -> int:
        """Bytes that a recovery would read."""
        ...

    @property
    def has_room(self) -> bool:
        """False while it cannot be written: grants must be refused."""
        ...

    def recover(self) -> tuple[Entry, ...]:
        """Read all entries, in order, and prepare to append. Callable from any thread.

        Raises INTERNAL when it is damaged or only another version can read it.
        """
        ...

    def append(self, changes: Sequence[Entry]) -> Awaitable[None]:
        """`corekit.aio.driver.Journal`; its error ends the daemon."""
        ...

    def upkeep(self) -> None:
        """Housekeeping, to be called about once a second."""
        ...

    def close(self) -> None:
        """Wait for the last append; idempotent."""
        ...
