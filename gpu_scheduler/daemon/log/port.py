"""The port of a log: consecutive numbered items, and for each number exactly one writer.

The log is the arbiter between schedulers; there is no lock. The writer whose `put_if_absent` of a
number returned True owns that item, and whatever follows from it may be answered. Any number of
schedulers may try: all but one of them lose, at that number, and end.

A removed item would be absent again, and a scheduler that was suspended before it would then win a
number of the past. Therefore `trim` keeps the items named in `keep`: the first item of every run.
A run that owns all items up to `n - 1` can only try `n`; if another run has continued the log, `n`
is the first item of that run, and is there. The first item that a run itself puts has no such
predecessor: its writer compares it with the newest snapshot (`writer.py`). Neither needs a clock.

Calls block, and one thread at a time uses a `Log`; several may be open on one address. All of them
see each other's completed calls at once (read-after-write consistency).

Errors: UNAVAILABLE, TIMEOUT, EXHAUSTED are worth a repetition of the same call, which is harmless;
after TIMEOUT and UNAVAILABLE a put may have happened. All others are final. No message contains a
credential.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from corekit.errors import AppError, ErrorCode

#: Scheme of a journal in the state folder.
FILE = "file"


class Snapshot(NamedTuple):
    """The history up to an item, in a form of the writer's own."""

    seq: int  #: of the last item that it stands for
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Bounds of an engine."""

    item_bytes_max: int  #: a larger item is refused
    snapshot_after: int  #: items after which a snapshot shortens the next recovery
    snapshot_bytes: int = 8 * 2**20  #: bytes after which it does; read back in about a second


class LogDamage(AppError):
    """A log that cannot be trusted from some item on: what is wrong, and the way out."""

    def __init__(
        self, where: str, seq: int, why: str, *, lost: bytes | None = None, is_counted: bool = True
    ) -> None:
        text = f"{where} is damaged at item {seq}: {why}. Restore it from a copy, or keep what is "
        super().__init__(ErrorCode.INTERNAL, f"{text}sound: {remedy_of(where)}", seq=seq)
        self.seq = seq
        self.why = why
        self.lost = lost  #: what is stored there instead; None: what items there are
        self.is_counted = is_counted  #: whether `Log.last_seq` is known to be the last one


def remedy_of(where: str) -> str:
    """The command that repairs a journal: of the path of a file, or of an address."""
    place = f"--log '{where}'" if "://" in where else f"--state {Path(where).parent}"
    return f"ssgmd {place} journal repair"


@runtime_checkable
class Log(Protocol):
    """One open log. Numbers begin with 1."""

    @property
    def limits(self) -> LogLimits: ...

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        """Store an item durably; False when the number is taken, whatever it holds.

        Numbers up to that of the newest snapshot may count as taken.
        """
        ...

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        """Whole items from a number on, without a gap; ends before the first absent one.

        Raises LogDamage where an engine has a checksum of its own that does not hold.
        """
        ...

    def last_seq(self, after: int) -> int:
        """The highest number above `after`; `after` itself without one. It may be behind a gap."""
        ...

    def trim(self, to_seq: int, keep: Collection[int] = ()) -> None:
        """Remove the items up to a number except those in `keep`, and all snapshots before it.

        A call that failed may have removed some of them.
        """
        ...

    def put_snapshot(self, seq: int, data: bytes) -> None:
        """Store a snapshot of any size. It becomes visible as a whole, or not at all.

        It may replace all items up to its number at once, and every older snapshot.
        """
        ...

    def newest_snapshot(self) -> Snapshot | None:
        """The snapshot with the highest number."""
        ...

    def newest_snapshot_seq(self) -> int:
        """Its number alone; 0 without a snapshot."""
        ...

    def interrupt(self) -> None:
        """Break off a call that hangs in another thread: it raises UNAVAILABLE."""
        ...

    def close(self) -> None:
        """Release connections; idempotent."""
        ...


@runtime_checkable
class LocalLog(Log, Protocol):
    """A log on this machine's own disk: one run at a time, and its puts are usually prompt."""

    @property
    def has_room(self) -> bool:
        """False while no space can be allocated ahead: grants must be refused."""
        ...

    @property
    def torn_bytes(self) -> int:
        """Of an item whose put a crash interrupted; the next put drops it."""
        ...

    def be_alone(self) -> None:
        """From now on no other opening puts anything, so puts need not look for it.

        Only for who holds the folder's lock.
        """
        ...

    def write_snapshot(self, seq: int, data: bytes) -> Callable[[], None]:
        """The first, long half of `put_snapshot`, which no reader sees yet.

        It may run in any thread; the second half, which it gives, in that of the puts.
        """
        ...

    def upkeep(self) -> None:
        """Housekeeping that may wait for the disk, due about once a second."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAddress:
    """A parsed `--log` address, without credentials."""

    scheme: str
    text: str  #: as given, for messages
    host: str  #: "host", "host:port", or a bucket or table
    path: str  #: without the leading slash
    user: str  #: "" = none
    options: Mapping[str, str]


class LogEngine(Protocol):
    """A kind of storage for logs; the plugin `NAME` serves the addresses `NAME://…`.

    An entry point of the group `orchgpu.logs`, or a module of `daemon/log/engines` with `ENGINE`.
    """

    @property
    def summary(self) -> str:
        """The form of its addresses, for messages."""
        ...

    def open(self, address: LogAddress, call_s: float) -> Log:
        """Connect, and create what is missing. `call_s`: the longest time of one call.

        Raises INVALID for a wrong address, NOT_FOUND, DENIED, UNAVAILABLE.
        """
        ...
