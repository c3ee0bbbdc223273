"""Check and repair of a damaged journal, by an operator.

A torn tail is not damage: the daemon drops it, nothing in it was ever answered. A synced line that
is missing, does not check or does not follow from those before it is damage: nothing may be granted
on a guess, so the daemon refuses to start. `repair` keeps everything before the damage, ends the
leases that live there (their later history is lost), and sets epoch and fence above all that was
lost, so that no host accepts an older state and no fence is given twice.

Entries of a newer version are not damage either, and `repair` leaves such a journal unchanged.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from corekit.aio.files import sync_folder, write_new
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource, LeaseId, SessionId
from corekit.values import Value, replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.format import (
    JournalDamage,
    Scanned,
    body_of,
    no_journal,
    whole_lines,
)
from gpu_scheduler.daemon.journal.journal import (
    NAME,
    free_name,
    lock_folder,
    log_remedy_of,
    remedy_of,
)
from gpu_scheduler.daemon.journal.reader import Entries, read_journal, rewritten
from gpu_scheduler.daemon.journal.sync_marker import NAME as MARKER_NAME
from gpu_scheduler.daemon.journal.sync_marker import write_marker
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
    items: int | None = None  #: items behind the newest snapshot of a log; None: a file
    damage: str | None = None
    damaged_bytes: int = 0  #: from the damage to the end
    lost_lines: int | None = 0  #: synced lines from the damage on; None = unknown
    whole_after: int = 0  #: of them, lines that check but do not follow from the undamaged ones
    named_there: tuple[str, ...] = ()  #: readable names of leases and jobs in the damaged part
    live: tuple[str, ...] = ()  #: leases live before the damage; `repair` ends them
    ignored: tuple[str, ...] = ()  #: keys and changes of a newer version
    kept_as: str | None = None  #: path of the old file after a repair

    @property
    def remedy(self) -> str:
        in_log = "://" in self.journal
        return log_remedy_of(self.journal) if in_log else remedy_of(Path(self.journal))

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
        if self.whole_after:
            lost += f", {self.whole_after} of them whole, but not the ones before"
        return f"{lost} (in them: {', '.join(self.named_there)})" if self.named_there else lost


@dataclass(slots=True)
class Read:
    """A journal, read up to the damage."""

    checked: Checked
    machine: SchedulerMachine
    sound: tuple[bytes, ...]  #: its groups
    lost_bytes: int
    lost_lines: int | None


def check(folder: Path) -> Checked:
    """Read the whole journal without changing it.

    Raises NOT_FOUND without a journal, CONFLICT while a daemon runs on it, INVALID for another
    version's.
    """
    fd = lock_folder(_existing(folder).parent)
    try:
        return _read(folder / NAME).checked
    finally:
        os.close(fd)


def repair(folder: Path) -> Checked:
    """Keep everything before the damage, and the old file. An undamaged journal is unchanged.

    Raises as `check`; EXHAUSTED when the new file cannot be written.
    """
    path = _existing(folder)
    fd = lock_folder(folder)
    try:
        read = _read(path)
        if read.checked.damage is None:
            return read.checked
        kept = _replace(path, [*read.sound, *continuation(read)])
        return replace(read.checked, kept_as=kept)
    except OSError as error:
        text = f"the repaired journal cannot be written beside {path}: {error.strerror}"
        raise AppError(ErrorCode.EXHAUSTED, text) from None
    finally:
        os.close(fd)


def apply_all(machine: SchedulerMachine, entries: Iterable[Entry], name: str, remedy: str) -> None:
    """Replay a journal; `remedy` is the command that repairs it.

    Raises INTERNAL for an entry that contradicts those before it.
    """
    for number, entry in enumerate(entries, 1):
        why = misfit_of(machine, entry)
        if why is not None:
            text = f"{name} is damaged: entry {number} does not follow from those before it "
            text += f"({why}); run: {remedy}"
            raise AppError(ErrorCode.INTERNAL, text)


def misfit_of(machine: SchedulerMachine, entry: Entry) -> str | None:
    try:
        machine.apply(entry)
    except (AppError, LookupError, TypeError, ValueError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _existing(folder: Path) -> Path:
    path = folder / NAME
    if not path.exists() and not path.with_name(MARKER_NAME).exists():
        raise no_journal(folder)
    return path


def _read(path: Path) -> Read:
    """Raises INVALID, INTERNAL for another version's."""
    data = path.read_bytes() if path.exists() else b""
    synced: int | None = 0
    damage: str | None = None
    try:
        scanned = read_journal(path)
    except JournalDamage as found:
        scanned, synced = found.sound, found.synced
        damage = f"{found.why} (byte {scanned.end})"
    machine, decoder = empty_machine(), Entries(str(path), scanned.wrote)
    entries, sound, end = 0, len(scanned.groups), scanned.end
    for number, group in enumerate(scanned.groups):
        parsed = decoder.of(group)
        why = next((w for entry in parsed if (w := misfit_of(machine, entry))), None)
        if why is not None:
            sound, end = number, scanned.lines[number]
            damage = f"the line at byte {end} does not follow from those before it ({why})"
            machine = replayed(scanned.groups[:number], str(path))  # half a line may not count
            break
        entries += len(parsed)
    lost = data[end:].rstrip(b"\0") if damage else b""
    lines = _lost_lines(scanned, sound, synced, lost) if damage else 0
    checked = Checked(
        journal=str(path),
        entries=entries,
        leases=len(machine.state.leases),
        records=len(machine.state.records),
        torn_bytes=0 if damage else scanned.torn,
        damage=damage,
        damaged_bytes=len(lost),
        named_there=names_in(lost),
        lost_lines=lines,
        whole_after=len(whole_lines(lost)),
        live=tuple(machine.state.leases)[:NAMES_MAX],
        ignored=(*decoder.ignored, *machine.state.ignored),
    )
    return Read(checked, machine, scanned.groups[:sound], len(lost), lines)


def _lost_lines(scanned: Scanned, sound: int, synced: int | None, lost: bytes) -> int | None:
    """Number of synced lines that are not among the undamaged ones; None = unknown."""
    if synced is None:
        return None
    last = sound  # without the first line nothing is sound: a snapshot stands for all before it
    if sound and scanned.last is not None:
        last = scanned.last.number - (len(scanned.groups) - sound)
    newest = max(synced, *whole_lines(lost), last)
    return max(newest - last, lost.count(b"\n"))


def empty_machine() -> SchedulerMachine:
    return SchedulerMachine(Budget(), IdSource("repair"))


def replayed(groups: Iterable[bytes], name: str) -> SchedulerMachine:
    machine = empty_machine()
    for entry in Entries(name, "").all_of(groups):
        machine.apply(entry)
    return machine


def names_in(lost: bytes) -> tuple[str, ...]:
    names = dict.fromkeys(_LEASE_OR_JOB.findall(lost))
    return tuple(name.decode(errors="replace") for name in list(names)[:NAMES_MAX])


def continuation(read: Read) -> Iterable[bytes]:
    """Groups to append: epoch and fence above all that was lost, then the ends of live leases."""
    machine = read.machine
    lines = UNKNOWN_LINES if read.lost_lines is None else read.lost_lines
    parts = UNKNOWN_LINES if read.lost_lines is None else read.lost_lines * LINE_PARTS_MAX
    epoch = machine.state.epoch + max(lines, read.lost_bytes // EPOCH_BYTES_MIN) + 1
    position = machine.state.position + max(parts, read.lost_bytes) + 1
    jump = Entry(parts=(EpochStarted(epoch=epoch, position=position, build=BUILD),))
    machine.apply(jump)
    yield _group(jump)
    wall_s = time.time()
    happened: list[on.Event] = [on.EpochBegan(run="", build=BUILD, at_s=0.0, wall_s=wall_s)]
    happened += [_revoked(lease, wall_s) for lease in machine.state.leases]
    for event in happened:
        for entry in machine.handle(event).changes:
            yield _group(entry)


def _revoked(lease: LeaseId, wall_s: float) -> on.Event:
    detail = "the journal was repaired"
    return on.Asked(
        op=ops.Release(lease=lease, reason=EndReason.REVOKED, detail=detail),
        session=SessionId("repair"),
        reply_to="0.0",
        at_s=0.0,
        wall_s=wall_s,
    )


def _group(entry: Entry) -> bytes:
    return body_of([encode_entry(entry)])


def _replace(path: Path, groups: Iterable[bytes]) -> str:
    """Write a new journal of these groups in the place of the old one, which is kept; its path."""
    data, mark = rewritten(groups)
    new = path.with_suffix(".new")
    write_new(new, data)
    kept = free_name(path, "damaged")
    if path.exists():
        os.link(path, kept)  # both names stand for the old one until the next line but one
    write_marker(path.parent, mark)
    new.replace(path)
    sync_folder(path.parent)
    return str(kept)
