"""What an operator does to a journal that is damaged: look at it, or keep what is sound of it.

A torn tail is no damage: the daemon drops it by itself, nothing in it was ever answered. A line
that was synced and is missing or does not check, or that does not follow from those before it, is:
nothing may be granted on a guess, so the daemon refuses to start. `repair` keeps everything before
the damage, ends the leases that live there (how they went on is lost), and sets epoch and fence
above all that was lost, so that no host takes the past for the present and no fence is given twice.

What a newer version wrote is no damage either, and `repair` leaves such a journal alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource, LeaseId, SessionId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.format import JournalDamage, Scanned, body_of, whole_lines
from gpu_scheduler.daemon.journal.journal import NAME, free_name, lock_folder
from gpu_scheduler.daemon.journal.reader import Entries, read_journal, rewritten
from gpu_scheduler.daemon.journal.sync_marker import NAME as MARKER_NAME
from gpu_scheduler.daemon.journal.sync_marker import sync_folder, write_marker
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.changes import Entry, EpochStarted, encode_entry

#: No line that starts an epoch is shorter: bounds how many epochs lost bytes can hold.
EPOCH_BYTES_MIN = 60
#: More parts than a line can hold: it has 256 decisions at most, and one decision ends at most
#: `leases_max` leases. Bounds the fences in lines that are missing.
LINE_PARTS_MAX = 10**8
#: For epochs and fences, where nobody knows how many lines are missing: a year of 30 per second.
UNKNOWN_LINES = 10**9
#: Named in what `repair` says; the old file has all of them.
NAMES_MAX = 20

_LEASE_OR_JOB = re.compile(rb'"(?:holder|lease|id)":"([^"\\]{1,100})"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a journal holds, and what `repair` did with it."""

    journal: str
    entries: int  #: sound, from the beginning
    leases: int  #: live after them
    records: int  #: job records after them
    torn_bytes: int  #: of an entry that was never answered; dropped at the next start
    damage: str | None = None
    damaged_bytes: int = 0  #: from the damage to the end
    lost_lines: int | None = 0  #: that were synced, from the damage on; None = not known
    whole_after: int = 0  #: of them, those that check but do not follow from what is sound
    named_there: tuple[str, ...] = ()  #: leases and jobs in what is damaged, as far as readable
    live: tuple[str, ...] = ()  #: leases that live before the damage: `repair` ends them
    ignored: tuple[str, ...] = ()  #: what a newer version wrote and this one does not know
    kept_as: str | None = None  #: where `repair` put the old file

    @property
    def remedy(self) -> str:
        return f"ssgmd --state {Path(self.journal).parent} journal repair"

    @property
    def sentence(self) -> str:
        found = f"{self.journal}: {self.entries} entries are sound, with {self.leases} live leases"
        found += f" and {self.records} job records"
        if self.ignored:
            found += f"; of a newer version and ignored: {', '.join(self.ignored)}"
        if self.torn_bytes:
            found += f"; {self.torn_bytes} bytes of a torn last entry will be dropped"
        if self.damage is None:
            return found
        found += f"; {self.damaged_bytes} bytes after them are not; {self._lost}"
        if self.kept_as is None:
            return found
        ended = f"the live leases ended ({', '.join(self.live)})" if self.live else "no lease lived"
        return f"{found}. They are dropped, {ended}; the old file is {self.kept_as}"

    @property
    def _lost(self) -> str:
        if self.lost_lines is None:
            return "how many entries are missing behind them is not known"
        lost = f"{self.lost_lines} synced groups of entries are lost"
        if self.whole_after:
            lost += f", {self.whole_after} of them whole, but without those before them"
        return f"{lost} (there: {', '.join(self.named_there)})" if self.named_there else lost


@dataclass(slots=True)
class _Read:
    """A journal, read as far as it is sound."""

    checked: Checked
    machine: SchedulerMachine
    sound: tuple[bytes, ...]  #: its groups
    lost_bytes: int
    lost_lines: int | None


def check(folder: Path) -> Checked:
    """Read everything; change nothing.

    Raises NOT_FOUND without a journal, CONFLICT while a daemon runs on it, INVALID for another
    version's.
    """
    fd = lock_folder(_existing(folder).parent)
    try:
        return _read(folder / NAME).checked
    finally:
        os.close(fd)


def repair(folder: Path) -> Checked:
    """Keep what is sound; the old file stays beside the new one. A whole journal is left alone.

    Raises as `check`; EXHAUSTED when the new file cannot be written.
    """
    path = _existing(folder)
    fd = lock_folder(folder)
    try:
        read = _read(path)
        if read.checked.damage is None:
            return read.checked
        kept = _replace(path, [*read.sound, *_continuation(read)])
        return replace(read.checked, kept_as=kept)
    except OSError as error:
        text = f"the repaired journal cannot be written beside {path}: {error.strerror}"
        raise AppError(ErrorCode.EXHAUSTED, text) from None
    finally:
        os.close(fd)


def apply_all(machine: SchedulerMachine, entries: Iterable[Entry], journal: Path) -> None:
    """Replay a journal. Raises INTERNAL for an entry that does not follow from those before it."""
    for number, entry in enumerate(entries, 1):
        why = _misfit(machine, entry)
        if why is not None:
            text = f"{journal} is damaged: entry {number} does not follow from those before it "
            text += f"({why}); run: ssgmd --state {journal.parent} journal repair"
            raise AppError(ErrorCode.INTERNAL, text)


def _misfit(machine: SchedulerMachine, entry: Entry) -> str | None:
    try:
        machine.apply(entry)
    except (AppError, LookupError, TypeError, ValueError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _existing(folder: Path) -> Path:
    path = folder / NAME
    if not path.exists() and not path.with_name(MARKER_NAME).exists():
        raise AppError(ErrorCode.NOT_FOUND, f"there is no journal in {folder}")
    return path


def _read(path: Path) -> _Read:
    """Raises INVALID, INTERNAL for another version's."""
    data = path.read_bytes() if path.exists() else b""
    synced: int | None = 0
    damage: str | None = None
    try:
        scanned = read_journal(path)
    except JournalDamage as found:
        scanned, synced = found.sound, found.synced
        damage = f"{found.why} (byte {scanned.end})"
    machine, decoder = _empty(), Entries(path, scanned.wrote)
    entries, sound, end = 0, len(scanned.groups), scanned.end
    for number, group in enumerate(scanned.groups):
        parsed = decoder.of(group)
        why = next((w for entry in parsed if (w := _misfit(machine, entry))), None)
        if why is not None:
            sound, end = number, scanned.lines[number]
            damage = f"the line at byte {end} does not follow from those before it ({why})"
            machine = _replayed(scanned.groups[:number], path)  # half a line may not count
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
        named_there=_named(lost),
        lost_lines=lines,
        whole_after=len(whole_lines(lost)),
        live=tuple(machine.state.leases)[:NAMES_MAX],
        ignored=(*decoder.passed, *machine.state.ignored),
    )
    return _Read(checked, machine, scanned.groups[:sound], len(lost), lines)


def _lost_lines(scanned: Scanned, sound: int, synced: int | None, lost: bytes) -> int | None:
    """How many synced lines are not among the sound ones; None = nobody knows."""
    if synced is None:
        return None
    last = sound
    if scanned.last is not None:
        last = scanned.last.number - (len(scanned.groups) - sound)
    newest = max(synced, *whole_lines(lost), last)
    return max(newest - last, lost.count(b"\n"))


def _empty() -> SchedulerMachine:
    return SchedulerMachine(Budget(), IdSource("repair"))


def _replayed(groups: Iterable[bytes], path: Path) -> SchedulerMachine:
    machine = _empty()
    for entry in Entries(path, "").all_of(groups):
        machine.apply(entry)
    return machine


def _named(lost: bytes) -> tuple[str, ...]:
    names = dict.fromkeys(_LEASE_OR_JOB.findall(lost))
    return tuple(name.decode(errors="replace") for name in list(names)[:NAMES_MAX])


def _continuation(read: _Read) -> Iterable[bytes]:
    """Groups behind the sound ones: epoch and fence above what was lost, then the leases' ends."""
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
    """A new journal of these groups in the old one's place; where the old one is now."""
    data, mark = rewritten(groups)
    new = path.with_suffix(".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(data)
        file.flush()
        os.fsync(fd)
    kept = free_name(path, "damaged")
    if path.exists():
        os.link(path, kept)  # both names stand for the old one until the next line but one
    write_marker(path.parent, mark)
    new.replace(path)
    sync_folder(path.parent)
    return str(kept)
