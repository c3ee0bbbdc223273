"""Copies of a journal: a backup beside a running daemon, and a migration to another place.

Both read the whole journal, replay it, and so notice damage before anything is written. A copy is a
snapshot of all entries at the beginning of another log; it is read back and replayed, and must be
the same state. A migration ends what still writes to its source by a line of its own, so that a
daemon there loses its next number (exit 10).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from corekit.aio.files import write_new
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.format import (
    encode_group,
    encode_header,
    encode_snapshot,
    no_journal,
)
from gpu_scheduler.daemon.journal.reader import BEGIN_TRIES, LogReader, LogTrimmed, with_fences
from gpu_scheduler.daemon.journal.repair import JournalRead, claim, read_journal
from gpu_scheduler.daemon.log.port import Log
from gpu_scheduler.protocol.changes import encode_parts

#: Called with the number of entries read so far.
Watch = Callable[[int], None]


class Copied(Value):
    """Report on a copy."""

    source: str
    target: str
    entries: int
    leases: int  #: live after them
    records: int  #: job records after them
    bytes: int

    @property
    def sentence(self) -> str:
        found = f"{self.entries} entries, with {self.leases} live leases and {self.records} job "
        return f"{found}records, copied from {self.source} to {self.target} ({self.bytes} bytes)"


def whole_journal(log: Log, where: str, watch: Watch = lambda _: None) -> JournalRead:
    """The journal of a log, also while a daemon appends to it. Raises NOT_FOUND, LogDamage."""
    for _ in range(BEGIN_TRIES - 1):
        with contextlib.suppress(LogTrimmed):  # the daemon wrote a snapshot: once more
            return _sound(read_journal(log, where, watch))
    return _sound(read_journal(log, where, watch))


def _sound(journal: JournalRead) -> JournalRead:
    if journal.damage is not None:
        raise journal.damage
    return journal


def ended(log: Log, where: str, watch: Watch = lambda _: None) -> JournalRead:
    """The same, after a line without entries that ends a daemon which writes to it."""
    reader = LogReader(log, where)
    reader.begin()
    if reader.last is None:
        raise no_journal(where)
    line, _ = encode_group(b"[]", reader.last)
    claim(log, where, reader.seq + 1, line, "stop it, then repeat")
    return whole_journal(log, where, watch)


def write(journal: JournalRead, log: Log, where: str) -> Copied:
    """Store a journal in a log without entries. Raises CONFLICT; verifies it."""
    source, reader = journal.checked, LogReader(log, where)
    if reader.begin() or reader.snapshot_seq:
        raise AppError(ErrorCode.CONFLICT, f"there is a journal in {where} already")
    if journal.last is None:
        raise no_journal(source.journal)
    seq = reader.seq + 1
    header, _ = encode_header(BUILD)  # claims the number; the snapshot stands for it
    claim(log, where, seq, header, "give another place")
    data = encode_snapshot(journal.entries, journal.last)
    log.put_snapshot(seq, with_fences([*reader.fences, seq], data))
    copy = whole_journal(log, where)
    if (state_of(journal), journal.last) != (state_of(copy), copy.last):
        text = f"the copy {where} differs from {source.journal}; remove it, and report this error"
        raise AppError(ErrorCode.INTERNAL, text)
    return Copied(
        source=source.journal,
        target=where,
        entries=source.entries,
        leases=source.leases,
        records=source.records,
        bytes=sum(map(len, journal.entries)),
    )


def state_of(journal: JournalRead) -> bytes:
    """A snapshot of the state at the journal's end."""
    return encode_parts(journal.machine.parts())


def copy_beside(state: Path, folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Copy files of the state folder that exist, readable by their owner alone; their names."""
    found = [name for name in names if (state / name).exists()]
    for name in found:
        write_new(folder / name, (state / name).read_bytes())
        shutil.copystat(state / name, folder / name)
    return tuple(found)
