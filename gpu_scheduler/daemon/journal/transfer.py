"""Copies of a journal: a backup beside a running daemon, and a migration to another place.

Both read the whole journal, replay it, and so notice damage before anything is written. A copy is a
snapshot of all entries at the beginning of another log; it is read back and replayed, and must be
the same state. A migration ends what still writes to its source by a line of its own, so that a
daemon there loses its next number (exit 10).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from corekit.aio.files import write_new
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.entries import Entries
from gpu_scheduler.daemon.journal.format import (
    Mark,
    encode_group,
    encode_header,
    encode_snapshot,
    no_journal,
    split_group,
)
from gpu_scheduler.daemon.journal.reader import LogLine, LogReader, with_fences
from gpu_scheduler.daemon.journal.repair import apply_all, claim, empty_machine
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


@dataclass(frozen=True, slots=True)
class Contents:
    """A whole journal, replayed."""

    name: str
    texts: tuple[bytes, ...]  #: JSON texts of all entries
    last: Mark  #: its last line
    state: bytes  #: snapshot of the state after it
    leases: int
    records: int

    def copied(self, target: str) -> Copied:
        return Copied(
            source=self.name,
            target=target,
            entries=len(self.texts),
            leases=self.leases,
            records=self.records,
            bytes=sum(map(len, self.texts)),
        )


def contents_of(log: Log, where: str, watch: Watch = lambda _: None) -> Contents:
    """The journal of a log, also while a daemon appends to it. Raises NOT_FOUND, LogDamage."""
    reader = LogReader(log, where)
    return _replayed(reader, reader.begin(), where, watch)


def ended(log: Log, where: str, watch: Watch = lambda _: None) -> Contents:
    """The same, after a line without entries that ends a daemon which writes to it."""
    reader = LogReader(log, where)
    lines = reader.begin()
    if reader.last is None:
        raise no_journal(where)
    line, _ = encode_group(b"[]", reader.last)
    claim(log, where, reader.seq + 1, line, "stop it, then repeat")
    return _replayed(reader, [*lines, *reader.poll()], where, watch)


def _replayed(reader: LogReader, lines: Iterable[LogLine], where: str, watch: Watch) -> Contents:
    if reader.last is None:
        raise no_journal(where)
    machine, decoder = empty_machine(), Entries(where, reader.wrote)
    texts: list[bytes] = []
    for line in lines:
        apply_all(machine, decoder.of(line.group), where)
        texts += map(bytes, split_group(line.group))
        watch(len(texts))
    return Contents(
        name=where,
        texts=tuple(texts),
        last=reader.last,
        state=encode_parts(machine.parts()),
        leases=len(machine.state.leases),
        records=len(machine.state.records),
    )


def write(contents: Contents, log: Log, where: str) -> Copied:
    """Store a journal in a log without entries. Raises CONFLICT; verifies it."""
    reader = LogReader(log, where)
    if reader.begin() or reader.snapshot_seq:
        raise AppError(ErrorCode.CONFLICT, f"there is a journal in {where} already")
    seq = reader.seq + 1
    header, _ = encode_header(BUILD)  # claims the number; the snapshot stands for it
    claim(log, where, seq, header, "give another place")
    data = encode_snapshot(contents.texts, contents.last)
    log.put_snapshot(seq, with_fences([*reader.fences, seq], data))
    copy = contents_of(log, where)
    if (contents.state, contents.last) != (copy.state, copy.last):
        text = f"the copy {where} differs from {contents.name}; remove it, and report this error"
        raise AppError(ErrorCode.INTERNAL, text)
    return contents.copied(where)


def copy_beside(state: Path, folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Copy files of the state folder that exist, readable by their owner alone; their names."""
    found = [name for name in names if (state / name).exists()]
    for name in found:
        write_new(folder / name, (state / name).read_bytes())
        shutil.copystat(state / name, folder / name)
    return tuple(found)
