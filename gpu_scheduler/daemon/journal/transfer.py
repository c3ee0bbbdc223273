"""Copies of a journal: a backup beside a running daemon, and a migration to another place.

Both read the whole journal, replay it, and so notice damage before anything is written. A copy in a
folder is a journal file with its sync marker, from which `ssgmd --state` starts. A copy in a log is
a snapshot of all entries at its beginning.

A migration ends what still writes to its source: the folder must be unlocked, and to a log it
appends a line of its own, so that a daemon there loses its next number (exit 10). The copy is read
back and replayed; it must be the same state.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from corekit.aio.files import sync_folder, write_new
from corekit.aio.process import private_folder
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.format import (
    Mark,
    Scanned,
    encode_group,
    encode_header,
    no_journal,
    scan,
)
from gpu_scheduler.daemon.journal.journal import NAME, lock_folder, log_remedy_of, remedy_of
from gpu_scheduler.daemon.journal.log_journal import as_file
from gpu_scheduler.daemon.journal.log_reader import LogLine, LogReader, encode_snapshot
from gpu_scheduler.daemon.journal.reader import Entries, as_snapshot, read_journal
from gpu_scheduler.daemon.journal.repair import apply_all, empty_machine
from gpu_scheduler.daemon.journal.sync_marker import NAME as MARKER_NAME
from gpu_scheduler.daemon.journal.sync_marker import read_marker, write_marker
from gpu_scheduler.daemon.log.item import RUN_LENGTH, encode_items
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
    data: bytes  #: as a file
    groups: tuple[bytes, ...]
    last: Mark  #: its last line
    state: bytes  #: snapshot of the state after it
    entries: int
    leases: int
    records: int

    def copied(self, target: str) -> Copied:
        return Copied(
            source=self.name,
            target=target,
            entries=self.entries,
            leases=self.leases,
            records=self.records,
            bytes=len(self.data),
        )


def folder_contents(folder: Path, watch: Watch = lambda _: None) -> Contents:
    """The journal of a folder, also while a daemon appends to it. Raises NOT_FOUND, JournalDamage.

    The marker is read first: it names a line that the file holds, before and after a compaction.
    """
    path = folder / NAME
    if not path.exists():
        raise no_journal(folder)
    marker = read_marker(folder)
    data = path.read_bytes()
    if marker.mark is None:
        read_journal(path)  # raises, as the daemon would
    scanned = scan(data, str(path), marker.mark)
    return _replayed(str(path), remedy_of(path), data[: scanned.end], scanned, watch)


def log_contents(log: Log, where: str, watch: Watch = lambda _: None) -> Contents:
    """The journal of a log, also while a daemon appends to it. Raises NOT_FOUND, LogDamage."""
    reader = LogReader(log, where)
    lines = reader.begin()
    if reader.last is None:
        raise no_journal(where)
    return _contents_of(reader, lines, where, watch)


def _contents_of(reader: LogReader, lines: Sequence[LogLine], where: str, watch: Watch) -> Contents:
    data = as_file(reader, lines)
    return _replayed(where, log_remedy_of(where), data, scan(data, where), watch)


def _replayed(name: str, remedy: str, data: bytes, scanned: Scanned, watch: Watch) -> Contents:
    machine, decoder, count = empty_machine(), Entries(name, scanned.wrote), 0
    for group in scanned.groups:
        entries = decoder.of(group)
        apply_all(machine, entries, name, remedy)
        count += len(entries)
        watch(count)
    assert scanned.last is not None, "it has a header"
    state = machine.state
    return Contents(
        name=name,
        data=data,
        groups=scanned.groups,
        last=scanned.last,
        state=encode_parts(machine.parts()),
        entries=count,
        leases=len(state.leases),
        records=len(state.records),
    )


# ---------------------------------------------------------------------- targets


def write_folder(contents: Contents, folder: Path) -> Copied:
    """Store a journal in a folder, which has none. Raises CONFLICT, EXHAUSTED; verifies it."""
    try:
        private_folder(folder)
        fd = lock_folder(folder)
        try:
            path = folder / NAME
            if path.exists() or (folder / MARKER_NAME).exists():
                raise AppError(ErrorCode.CONFLICT, f"there is a journal in {folder} already")
            write_new(path, contents.data)
            write_marker(folder, contents.last)
            sync_folder(folder)
        finally:
            os.close(fd)
    except OSError as error:
        text = f"the journal cannot be written to {folder}: {error.strerror}"
        raise AppError(ErrorCode.EXHAUSTED, text) from None
    _same(contents, folder_contents(folder))
    return contents.copied(str(folder / NAME))


def copy_beside(state: Path, folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Copy files of the state folder that exist, readable by their owner alone; their names."""
    found = [name for name in names if (state / name).exists()]
    for name in found:
        write_new(folder / name, (state / name).read_bytes())
        shutil.copystat(state / name, folder / name)
    return tuple(found)


def write_log(contents: Contents, log: Log, where: str) -> Copied:
    """Store a journal in a log without entries. Raises CONFLICT; verifies it."""
    reader = LogReader(log, where)
    if reader.begin() or reader.snapshot_seq:
        raise AppError(ErrorCode.CONFLICT, f"there is a journal in {where} already")
    seq = reader.seq + 1
    header, _ = encode_header(BUILD)  # claims the number; the snapshot stands for it
    for item in encode_items(header, _new_run(), log.limits.item_bytes_max):
        if not log.put_if_absent(seq, item):
            raise AppError(ErrorCode.CONFLICT, f"another program writes to {where}")
    data = as_snapshot(contents.groups, contents.last)
    log.put_snapshot(seq, encode_snapshot([*reader.fences, seq], data))
    _same(contents, log_contents(log, where))
    return contents.copied(where)


def _same(one: Contents, other: Contents) -> None:
    if (one.state, one.last) != (other.state, other.last):
        text = f"the copy {other.name} differs from {one.name}; remove it, and report this error"
        raise AppError(ErrorCode.INTERNAL, text)


# ---------------------------------------------------------------------- sources


@contextmanager
def ended_folder(folder: Path, watch: Watch = lambda _: None) -> Iterator[Contents]:
    """The journal of a folder on which no daemon runs meanwhile. Raises CONFLICT."""
    if not (folder / NAME).exists():
        raise no_journal(folder)
    fd = lock_folder(folder)
    try:
        yield folder_contents(folder, watch)
    finally:
        os.close(fd)


def ended_log(log: Log, where: str, watch: Watch = lambda _: None) -> Contents:
    """The journal of a log, after a line without entries that ends a daemon which writes to it."""
    reader = LogReader(log, where)
    lines = reader.begin()
    if reader.last is None:
        raise no_journal(where)
    line, _ = encode_group(b"[]", reader.last)
    (item,) = encode_items(line, _new_run(), log.limits.item_bytes_max)
    if not log.put_if_absent(reader.seq + 1, item):
        text = f"a daemon appends to {where}: stop it, then repeat"
        raise AppError(ErrorCode.CONFLICT, text)
    return _contents_of(reader, [*lines, *reader.poll()], where, watch)


def _new_run() -> str:
    return secrets.token_hex(RUN_LENGTH // 2)
