"""Check and repair of a damaged journal, by an operator; the same in every engine.

A torn tail is not damage: the daemon drops it, nothing in it was ever answered. An item that is
missing, does not check or does not follow from those before it is damage: nothing may be granted on
a guess, so the daemon refuses to start. `repair` keeps everything before the damage, ends the
leases that live there (their later history is lost), and sets epoch and fence above all that was
lost, so that no host accepts an older state and no fence is given twice.

A check only reads. A repair first claims the number behind the last item there is: a daemon that
still writes loses its next number by that. Then it stores a snapshot of what is sound, and of its
own changes, in the place of everything up to there; what was there is kept in the state folder.

Entries of a newer version are not damage either, and `repair` leaves such a journal unchanged.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource, LeaseId, SessionId
from corekit.values import Value, replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.copies import items_from, keep_copy
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
from gpu_scheduler.daemon.log.item import RUN_LENGTH, decode_item, encode_items
from gpu_scheduler.daemon.log.port import LocalLog, Log, LogDamage, remedy_of
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.changes import Entry, EpochStarted, encode_entry

#: Shortest line that starts an epoch: bounds the number of epochs in lost bytes.
EPOCH_BYTES_MIN = 60
#: More parts than a line can hold: it has 256 decisions at most, and one decision ends at most
#: `leases_max` leases. Bounds the fences in lines that are missing.
LINE_PARTS_MAX = 10**8
#: Assumed where the number of missing lines is unknown: a year of 30 lines a second.
UNKNOWN_LINES = 10**9
#: Most names in a report; the old file has all of them.
NAMES_MAX = 20

_LEASE_OR_JOB = re.compile(rb'"(?:holder|lease|id)":"([^"\\]{1,100})"')


class Checked(Value):
    """Report on a journal, before and after a repair."""

    journal: str
    entries: int  #: undamaged, from the beginning
    leases: int  #: live after them
    records: int  #: job records after them
    torn_bytes: int  #: of a last entry that was never answered; dropped at the next start
    items: int  #: behind the newest snapshot
    damage: str | None = None
    damaged_bytes: int = 0  #: from the damage to the end
    lost_lines: int | None = 0  #: items from the damage on; None = unknown
    named_there: tuple[str, ...] = ()  #: readable names of leases and jobs in the damaged part
    live: tuple[str, ...] = ()  #: leases live before the damage; `repair` ends them
    ignored: tuple[str, ...] = ()  #: keys and changes of a newer version
    kept_as: str | None = None  #: path of the old file after a repair

    @property
    def remedy(self) -> str:
        return remedy_of(self.journal)

    @property
    def sentence(self) -> str:
        found = f"{self.journal}: {self.entries} entries are undamaged, with {self.leases} live"
        found += f" leases and {self.records} job records"
        if self.ignored:
            found += f"; ignored, as of a newer version: {', '.join(self.ignored)}"
        if self.torn_bytes:
            found += f"; {self.torn_bytes} bytes of a torn last entry will be dropped"
        if self.damage is None:
            return found
        found += f"; {self.damaged_bytes} bytes after them are damaged; {self._lost}"
        if self.kept_as is None:
            return found
        ended = f"live leases ended: {', '.join(self.live)}" if self.live else "no lease was live"
        return f"{found}. They are dropped ({ended}); the old contents are in {self.kept_as}"

    @property
    def _lost(self) -> str:
        if self.lost_lines is None:
            return "the number of entries missing behind them is unknown"
        lost = f"{self.lost_lines} synced groups of entries are lost"
        return f"{lost} (in them: {', '.join(self.named_there)})" if self.named_there else lost


@dataclass(slots=True)
class JournalRead:
    """A journal, read and replayed up to the damage."""

    checked: Checked
    machine: SchedulerMachine
    entries: list[bytes]  #: JSON texts of the sound ones
    last: Mark | None  #: the last sound line; None: there is no header
    damage: LogDamage | None
    fences: list[int]  #: first items of all runs, also behind the damage
    end: int  #: the last item there is


def check(log: Log, where: str) -> Checked:
    """Read a whole journal. Raises NOT_FOUND without one, INVALID for another version's."""
    return read_journal(log, where).checked


def repair(log: Log, where: str, state: Path) -> Checked:
    """Keep everything before the damage, and a copy in the state folder. A sound one is unchanged.

    Raises as `check`; CONFLICT when a daemon appended meanwhile, EXHAUSTED without room.
    """
    read = read_journal(log, where)
    if read.damage is None:
        return read.checked
    try:
        kept = keep_copy(log, state, "damaged", read.damage.lost)
    except OSError as error:
        text = f"the items cannot be copied to {state}: {error.strerror}; give another --state"
        raise AppError(ErrorCode.EXHAUSTED, text) from None
    seq = read.end + 1
    line, mark = encode_group(b"[]", Mark(0, encode_header(BUILD)[1].crc))
    claim(log, where, seq, line, "stop it, then repair again")
    texts = [*read.entries, *map(encode_entry, _continuation(read))]
    log.put_snapshot(seq, with_fences([*read.fences, seq], encode_snapshot(texts, mark)))
    return replace(read.checked, kept_as=str(kept))


def claim(log: Log, where: str, seq: int, line: bytes, advice: str) -> None:
    """Put a line of one item, so that a daemon that writes there ends. Raises CONFLICT."""
    run = secrets.token_hex(RUN_LENGTH // 2)
    (item,) = encode_items(line, run, log.limits.item_bytes_max)
    if not log.put_if_absent(seq, item):
        raise AppError(ErrorCode.CONFLICT, f"a daemon appends to {where}: {advice}")


def apply_all(machine: SchedulerMachine, entries: Iterable[Entry], where: str) -> None:
    """Replay a journal.

    Raises INTERNAL for an entry that contradicts those before it.
    """
    for number, entry in enumerate(entries, 1):
        why = misfit_of(machine, entry)
        if why is not None:
            text = f"{where} is damaged: entry {number} does not follow from those before it "
            text += f"({why}); run: {remedy_of(where)}"
            raise AppError(ErrorCode.INTERNAL, text)


def misfit_of(machine: SchedulerMachine, entry: Entry) -> str | None:
    try:
        machine.apply(entry)
    except (AppError, LookupError, TypeError, ValueError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def read_journal(
    log: Log, where: str, watch: Callable[[int], None] = lambda _: None
) -> JournalRead:
    """Read and replay; `watch` gets the number of entries so far.

    Raises NOT_FOUND without a journal, INVALID, INTERNAL for another version's.
    """
    reader, machine, decoder = LogReader(log, where), _empty_machine(), Entries(where, "")
    sound: list[LogLine] = []
    count, damage = 0, None
    try:
        for line in reader.lines():
            decoder.build = decoder.build or reader.wrote
            parsed = decoder.of(line.group)
            why = next((w for entry in parsed if (w := misfit_of(machine, entry))), None)
            if why is not None:
                machine = _replayed(sound, where)  # half a line may not count
                text = f"its line does not follow from those before it ({why})"
                raise LogDamage(where, line.seq, text)
            sound.append(line)
            count += len(parsed)
            watch(count)
    except LogDamage as error:
        damage = error
    if damage is None and reader.seq == 0:
        raise no_journal(where)
    state = machine.state
    checked = Checked(
        journal=where,
        entries=count,
        leases=len(state.leases),
        records=len(state.records),
        torn_bytes=log.torn_bytes if isinstance(log, LocalLog) else 0,
        items=reader.seq - reader.snapshot_seq,
        live=tuple(state.leases)[:NAMES_MAX],
        ignored=(*decoder.ignored, *state.ignored),
    )
    texts = [bytes(text) for line in sound for text in split_group(line.group)]
    read = JournalRead(checked, machine, texts, reader.last, damage, reader.fences, reader.seq)
    if damage is not None:
        # a snapshot stands for any number of lines, and a file may have lost it
        is_from_one = log.newest_snapshot_seq() == 0 and damage.lost is None
        _judge(read, damage, log, is_counted=damage.is_counted and (bool(sound) or is_from_one))
    return read


def _judge(read: JournalRead, damage: LogDamage, log: Log, *, is_counted: bool) -> None:
    """Note what is lost from the damage on."""
    items = [] if damage.lost is not None else list(items_from(log, damage.seq))
    lost = b"".join(data for _, data in items) if damage.lost is None else damage.lost
    read.end = max(log.last_seq(0), damage.seq)
    read.fences = [*read.fences, *_first_items(items)]
    lines = read.end - damage.seq + 1 if damage.lost is not None else max(len(items), 1)
    read.checked = replace(
        read.checked,
        torn_bytes=0,
        damage=f"{damage.why} (item {damage.seq})",
        damaged_bytes=len(lost),
        lost_lines=lines if is_counted else None,
        named_there=_names_in(lost),
    )


def _first_items(items: list[tuple[int, bytes]]) -> list[int]:
    """First items of the runs among them; one that cannot be read counts as a run."""
    first: list[int] = []
    run: str | None = None
    for seq, data in items:
        item = decode_item(data)
        if item is None or item.run != run:
            first.append(seq)
        run = None if item is None else item.run
    return first


def _empty_machine() -> SchedulerMachine:
    return SchedulerMachine(Budget(), IdSource("repair"))


def _replayed(lines: Iterable[LogLine], where: str) -> SchedulerMachine:
    machine = _empty_machine()
    for entry in Entries(where, "").all_of(line.group for line in lines):
        machine.apply(entry)
    return machine


def _names_in(lost: bytes) -> tuple[str, ...]:
    names = dict.fromkeys(_LEASE_OR_JOB.findall(lost))
    return tuple(name.decode(errors="replace") for name in list(names)[:NAMES_MAX])


def _continuation(read: JournalRead) -> Iterable[Entry]:
    """Entries to append: epoch and fence above all that was lost, then the ends of live leases."""
    machine, checked = read.machine, read.checked
    is_known = checked.lost_lines is not None
    lines = checked.lost_lines if checked.lost_lines is not None else UNKNOWN_LINES
    parts = lines * LINE_PARTS_MAX if is_known else UNKNOWN_LINES
    epoch = machine.state.epoch + max(lines, checked.damaged_bytes // EPOCH_BYTES_MIN) + 1
    position = machine.state.position + max(parts, checked.damaged_bytes) + 1
    jump = Entry(parts=(EpochStarted(epoch=epoch, position=position, build=BUILD),))
    machine.apply(jump)
    yield jump
    wall_s = time.time()
    happened: list[on.Event] = [on.EpochBegan(run="", build=BUILD, at_s=0.0, wall_s=wall_s)]
    happened += [_revoked(lease, wall_s) for lease in machine.state.leases]
    for event in happened:
        yield from machine.handle(event).changes


def _revoked(lease: LeaseId, wall_s: float) -> on.Event:
    detail = "the journal was repaired"
    return on.Asked(
        op=ops.Release(lease=lease, reason=EndReason.REVOKED, detail=detail),
        session=SessionId("repair"),
        reply_to="0.0",
        at_s=0.0,
        wall_s=wall_s,
    )
