"""Check and repair of a journal in a log.

A check only reads, so it may run beside a daemon. A repair keeps everything before the damage: it
appends, behind the last item there is, lines that end the live leases and set epoch and fence above
all that was lost, and then stores a snapshot of what is sound in the place of all items before
these lines. A daemon that still wrote to the log loses its next number by that. Items are only
removed by a later trim; a copy of them is kept in the state folder.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from corekit.aio.files import write_new
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.format import Mark, encode_group, encode_header, no_journal
from gpu_scheduler.daemon.journal.journal import NAME, free_name
from gpu_scheduler.daemon.journal.log_reader import LogLine, LogReader, encode_snapshot
from gpu_scheduler.daemon.journal.reader import Entries, as_snapshot
from gpu_scheduler.daemon.journal.repair import (
    NAMES_MAX,
    Checked,
    Read,
    continuation,
    empty_machine,
    misfit_of,
    names_in,
    replayed,
)
from gpu_scheduler.daemon.log.item import RUN_LENGTH, LogDamage, decode_item, encode_items
from gpu_scheduler.daemon.log.port import Log


@dataclass(slots=True)
class _LogRead:
    """A log, read up to the damage."""

    read: Read
    reader: LogReader
    last: Mark | None  #: the newest sound line
    fences: list[int]  #: first items of all runs, also behind the damage
    end: int  #: the last item there is


def check_log(log: Log, where: str) -> Checked:
    """Read a whole log. Raises NOT_FOUND for an empty one, INVALID for another version's."""
    return _read(log, where).read.checked


def repair_log(log: Log, where: str, state: Path) -> Checked:
    """Keep everything before the damage. A sound log is unchanged.

    Raises as `check_log`; CONFLICT when a daemon appended meanwhile.
    """
    found = _read(log, where)
    read = found.read
    if read.checked.damage is None:
        return read.checked
    kept = free_name(state / NAME, "damaged")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        write_new(kept, _copied(log))
    except OSError as error:
        text = f"the items cannot be copied to {kept}: {error.strerror}; give another --state"
        raise AppError(ErrorCode.EXHAUSTED, text) from None
    last = found.last or Mark(0, encode_header(BUILD)[1].crc)
    sound = as_snapshot(read.sound, last)
    run, seq = secrets.token_hex(RUN_LENGTH // 2), found.end
    fences = [*found.fences, seq + 1]
    for group in continuation(read):
        line, last = encode_group(group, last)
        for item in encode_items(line, run, log.limits.item_bytes_max):
            seq += 1
            if not log.put_if_absent(seq, item):
                text = f"a daemon appends to {where}: stop it, then repair again"
                raise AppError(ErrorCode.CONFLICT, text)
    log.put_snapshot(found.end, encode_snapshot(fences, sound))
    return replace(read.checked, kept_as=str(kept))


def _read(log: Log, where: str) -> _LogRead:
    reader, damage = LogReader(log, where), None
    machine, decoder = empty_machine(), Entries(where, "")
    sound: list[LogLine] = []
    last: Mark | None = None
    entries = 0
    try:
        for line in reader.lines():
            decoder.build = decoder.build or reader.wrote
            parsed = decoder.of(line.group)
            why = next((w for entry in parsed if (w := misfit_of(machine, entry))), None)
            if why is not None:
                machine = replayed((one.group for one in sound), where)  # half a line may not count
                text = f"its line does not follow from those before it ({why})"
                raise LogDamage(where, line.seq, text)
            sound.append(line)
            last, entries = line.mark, entries + len(parsed)
    except LogDamage as found:
        damage = found
    if damage is None and reader.seq == 0:
        raise no_journal(where)
    lost = [] if damage is None else _behind(log, damage.seq)
    # a snapshot stands for any number of lines
    is_counted = bool(sound) or log.newest_snapshot_seq() == 0
    read = _judged(where, reader, machine, damage, lost)
    read.checked = replace(
        read.checked,
        entries=entries,
        ignored=(*decoder.ignored, *machine.state.ignored),
        lost_lines=read.lost_lines if is_counted or damage is None else None,
    )
    read.lost_lines = read.checked.lost_lines
    read.sound = tuple(line.group for line in sound)
    fences = [*reader.fences, *_first_items(lost)]
    end = lost[-1][0] if lost else max(reader.seq, 0 if damage is None else damage.seq)
    return _LogRead(read, reader, last, fences, end)


def _judged(
    where: str,
    reader: LogReader,
    machine: SchedulerMachine,
    damage: LogDamage | None,
    lost: list[tuple[int, bytes]],
) -> Read:
    data = b"".join(item for _, item in lost)
    checked = Checked(
        journal=where,
        entries=0,
        leases=len(machine.state.leases),
        records=len(machine.state.records),
        torn_bytes=0,
        items=reader.seq - reader.snapshot_seq,
        damage=None if damage is None else f"{damage.why} (item {damage.seq})",
        damaged_bytes=len(data),
        lost_lines=0 if damage is None else len(lost),
        named_there=names_in(data),
        live=tuple(machine.state.leases)[:NAMES_MAX],
    )
    return Read(checked, machine, (), len(data), checked.lost_lines)


def _behind(log: Log, seq: int) -> list[tuple[int, bytes]]:
    """The items from a number on, also those behind missing ones."""
    last = log.last_seq(seq - 1)
    found: list[tuple[int, bytes]] = []
    while seq <= last:
        some = list(log.read(seq))
        found += some
        seq += len(some) + 1
    return found


def _first_items(items: list[tuple[int, bytes]]) -> list[int]:
    """First items of the runs among them; one that cannot be read counts as a run."""
    found: list[int] = []
    run: str | None = None
    for seq, data in items:
        item = decode_item(data)
        if item is None or item.run != run:
            found.append(seq)
        run = None if item is None else item.run
    return found


def _copied(log: Log) -> bytes:
    """The newest snapshot and all items behind it, each behind a line with number and length."""
    newest = log.newest_snapshot()
    parts = [] if newest is None else [(f"snapshot {newest.seq}", newest.data)]
    first = 1 if newest is None else newest.seq + 1
    parts += [(f"item {n}", data) for n, data in _behind(log, first)]
    return b"".join(f"{name} {len(data)}\n".encode() + data + b"\n" for name, data in parts)
