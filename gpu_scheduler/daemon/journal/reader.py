"""Reading a journal in a log: the newest snapshot, then the lines after it, each as they come.

The item with number 1 holds the header of the format (format.py), the others a line each, or a
piece of one (daemon/log/item.py). A snapshot holds header and line behind one line of its own:

    {"log":"ssgmd","version":1,"fences":[1,57]} LF header LF line LF

`fences` are the first items of all runs up to it, which `trim` keeps (daemon/log/port.py). Nothing
is written here: a standby and `ssgmd journal backup` read beside a running daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.journal.format import Beginning, Mark, read_beginning, read_line
from gpu_scheduler.daemon.log.item import RUN_LENGTH, Pieces
from gpu_scheduler.daemon.log.port import Log, LogDamage, Snapshot

VERSION = 1
#: A reader that finds its place trimmed begins again; each time the daemon wrote a snapshot.
BEGIN_TRIES = 5


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a snapshot."""

    log: str
    version: int
    fences: tuple[int, ...] = ()


class LogTrimmed(AppError):
    """The reader's next item was removed behind a newer snapshot: it must begin again."""

    def __init__(self, where: str, seq: int) -> None:
        text = f"item {seq} of {where} was removed behind a newer snapshot; read again from there"
        super().__init__(ErrorCode.CONFLICT, text, seq=seq)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line behind the header, or a snapshot."""

    seq: int  #: of the item that committed it
    run: str  #: of its writer; empty: a snapshot
    group: bytes  #: JSON text: a list of entries
    mark: Mark  #: its position in the chain


class LogReader:
    """A position in a log, which `begin` and `poll` move forward."""

    def __init__(self, log: Log, where: str) -> None:
        self._log = log
        self._where = where
        self._found: list[LogLine] = []  #: read, and not yet returned
        self._is_begun = False
        self._restart()

    def _restart(self) -> None:
        self._pieces = Pieces(self._where)
        self.seq = 0  #: the newest item that was read, also of an incomplete line
        self.last: Mark | None = None  #: the newest line; None: there is no header yet
        self.run = ""  #: writer of that item; empty: unknown
        self.fences: list[int] = []  #: first items of all runs
        self.wrote = ""  #: version of the build that wrote the beginning
        self.snapshot_seq = 0
        self.bytes = 0  #: of the lines read since the snapshot
        self.snapshot_bytes = 0  #: of the snapshot that reading began with

    @property
    def dropped(self) -> int:
        """Pieces of lines that were never committed, and so never answered."""
        return self._pieces.dropped

    def begin(self) -> list[LogLine]:
        """Read the log up to its end, from the newest snapshot on. Raises LogDamage.

        After an error of the log, the next call continues where this one failed.
        """
        for last_try in (*[False] * (BEGIN_TRIES - 1), True):
            try:
                if not self._is_begun:
                    self._restart()
                    self._found = list(self._from_snapshot())
                    self._is_begun = True
                self._keep(self._up_to_the_end())
            except LogTrimmed:
                self._is_begun = False
                if last_try:
                    raise
            else:
                self._is_begun = False
                return self._taken()
        raise AssertionError("unreachable")

    def lines(self) -> Iterator[LogLine]:
        """The same one by one: what was read before damage is known then. No further try."""
        self._restart()
        yield from self._from_snapshot()
        yield from self._up_to_the_end()

    def poll(self) -> list[LogLine]:
        """The lines that were added since. Raises LogTrimmed, LogDamage.

        After an error of the log, the next call returns also what this one read.
        """
        self._keep(self._lines())
        if not self._found:
            self._compare_with_snapshot()
        return self._taken()

    def confirm_end(self) -> None:
        """Raise LogDamage when items are missing between the last one that was read and others.

        Items are written one after the other, so one that is behind a missing one was written after
        it. An append there would be a second history.
        """
        last = self._log.last_seq(self.seq)
        if last > self.seq and next(self._log.read(self.seq + 1), None) is None:
            self._compare_with_snapshot()
            text = f"it is missing, and there are items up to {last}"
            raise LogDamage(self._where, self.seq + 1, text)

    def _keep(self, lines: Iterator[LogLine]) -> None:
        for line in lines:  # one by one: an error loses none that was read
            self._found.append(line)

    def _taken(self) -> list[LogLine]:
        found, self._found = self._found, []
        return found

    def _up_to_the_end(self) -> Iterator[LogLine]:
        yield from self._lines()
        self._compare_with_snapshot()
        self.confirm_end()

    def _compare_with_snapshot(self) -> None:
        """Raise LogTrimmed when the next item may have been removed behind a newer snapshot."""
        if self._log.newest_snapshot_seq() > self.seq:
            raise LogTrimmed(self._where, self.seq + 1)

    # --- the parts

    def _from_snapshot(self) -> Iterator[LogLine]:
        snapshot = self._log.newest_snapshot()
        if snapshot is None:
            return
        head, data = self._opened(snapshot)
        group = self._beginning(snapshot.seq, data).group
        self.seq = self.snapshot_seq = snapshot.seq
        self.fences = list(head.fences)
        self.snapshot_bytes = len(snapshot.data)
        if group is not None and self.last is not None:
            yield LogLine(snapshot.seq, "", group, self.last)

    def _opened(self, snapshot: Snapshot) -> tuple[SnapshotHead, bytes]:
        first, _, data = snapshot.data.partition(b"\n")
        try:
            head = msgspec.json.decode(first, type=SnapshotHead)
        except msgspec.MsgspecError:
            raise LogDamage(self._where, snapshot.seq, "its snapshot has no head") from None
        if head.log != "ssgmd" or head.version != VERSION:
            text = f"{self._where} holds a snapshot of another version (version {head.version}); "
            raise invalid(text + "start the version that wrote it")
        return head, data

    def _beginning(self, seq: int, data: bytes) -> Beginning:
        beginning = read_beginning(data, self._where, seq)
        self.last, self.wrote = beginning.last, beginning.wrote
        return beginning

    def _lines(self) -> Iterator[LogLine]:
        for seq, data in self._log.read(self.seq + 1):
            for run, line in self._pieces.add(seq, data):
                if (found := self._line(seq, run, line)) is not None:
                    yield found
            self._note_run(seq, data)
            self.seq = seq

    def _note_run(self, seq: int, data: bytes) -> None:
        run = data[:RUN_LENGTH].decode()
        if run != self.run:
            self.run = run
            self.fences.append(seq)

    def _line(self, seq: int, run: str, data: bytes) -> LogLine | None:
        """A line of the chain; None: the header."""
        if self.last is None:
            self._beginning(seq, data)
            return None
        line = read_line(data.removesuffix(b"\n"))
        if line is None:
            raise LogDamage(self._where, seq, "its line does not check")
        due = self.last.number + 1
        if line.number != due:
            raise LogDamage(self._where, seq, f"line {line.number} stands where {due} belongs")
        if line.link != self.last.crc:
            raise LogDamage(self._where, seq, f"line {due} does not follow the line before it")
        self.last = Mark(due, line.crc)
        self.bytes += len(data)
        return LogLine(seq, run, line.body, self.last)


def with_fences(fences: list[int], data: bytes) -> bytes:
    """A snapshot of header and snapshot line."""
    head = SnapshotHead(log="ssgmd", version=VERSION, fences=tuple(fences))
    return msgspec.json.encode(head) + b"\n" + data
