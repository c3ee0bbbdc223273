"""What an operator does to a journal that is damaged: look at it, or keep what is sound of it.

A torn tail is no damage: the daemon drops it by itself, nothing in it was ever answered. A line
that was synced and does not check, or that does not follow from those before it, is: nothing may
be granted on a guess, so the daemon refuses to start. `repair` keeps everything before the damage,
ends the leases that live there (how they went on is lost), and sets epoch and fence above all that
was lost, so that no host takes the past for the present and no fence is given twice.
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
from gpu_scheduler.core.changes import Entry, EpochStarted, encode_entry
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal import NAME, lock_folder, read_group
from gpu_scheduler.daemon.journal_format import HEADER, encode_group, scan
from gpu_scheduler.model import EndReason

#: No line that starts an epoch is shorter: bounds how many epochs lost bytes can hold.
EPOCH_BYTES_MIN = 60
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
    named_there: tuple[str, ...] = ()  #: leases and jobs in what is damaged, as far as readable
    kept_as: str | None = None  #: where `repair` put the old file

    @property
    def remedy(self) -> str:
        return f"ssgmd --state {Path(self.journal).parent} journal repair"

    @property
    def sentence(self) -> str:
        found = f"{self.journal}: {self.entries} entries are sound, with {self.leases} live leases"
        found += f" and {self.records} job records"
        if self.torn_bytes:
            found += f"; {self.torn_bytes} bytes of a torn last entry will be dropped"
        if self.damage is None:
            return found
        found += f"; {self.damaged_bytes} bytes after them are not"
        if self.named_there:
            found += f" (there: {', '.join(self.named_there)})"
        if self.kept_as is None:
            return found
        return f"{found}. They are dropped, the live leases ended; the old file is {self.kept_as}"


@dataclass(slots=True)
class _Read:
    """A journal, read as far as it is sound."""

    checked: Checked
    machine: SchedulerMachine
    sound: bytes
    lost: bytes


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
        kept = _replace(path, read.sound + b"".join(_continuation(read)))
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
    if not path.exists():
        raise AppError(ErrorCode.NOT_FOUND, f"there is no journal in {folder}")
    return path


def _read(path: Path) -> _Read:
    data = path.read_bytes()
    machine = SchedulerMachine(Budget(), IdSource("repair"))
    damage: str | None = None
    try:
        scanned = scan(data, str(path))
    except AppError as error:
        if "byte" not in error.details:
            raise  # another version's, not damaged
        scanned = scan(data[: error.details["byte"]], str(path))
        damage = f"a line that was synced does not check at byte {scanned.end}"
    entries, end = 0, len(encode_group(HEADER)) if scanned.end else 0
    for group in scanned.groups:
        parsed = read_group(group, path)
        why = next((w for entry in parsed if (w := _misfit(machine, entry))), None)
        if why is not None:
            damage = f"the line at byte {end} does not follow from those before it ({why})"
            machine = _replayed(data[:end], path)
            break
        entries, end = entries + len(parsed), end + len(encode_group(group))
    lost = data[end:].rstrip(b"\0") if damage else b""
    checked = Checked(
        journal=str(path), entries=entries, leases=len(machine.state.leases),
        records=len(machine.state.records), torn_bytes=0 if damage else scanned.torn,
        damage=damage, damaged_bytes=len(lost), named_there=_named(lost),
    )  # fmt: skip
    return _Read(checked, machine, data[:end] if end else encode_group(HEADER), lost)


def _replayed(data: bytes, path: Path) -> SchedulerMachine:
    """The state after whole lines that are known to be sound: half a line may not count."""
    machine = SchedulerMachine(Budget(), IdSource("repair"))
    for group in scan(data, str(path)).groups:
        for entry in read_group(group, path):
            machine.apply(entry)
    return machine


def _named(lost: bytes) -> tuple[str, ...]:
    names = dict.fromkeys(_LEASE_OR_JOB.findall(lost))
    return tuple(name.decode(errors="replace") for name in list(names)[:NAMES_MAX])


def _continuation(read: _Read) -> Iterable[bytes]:
    """Lines behind the sound ones: epoch and fence above what was lost, then the leases' ends."""
    machine, lost = read.machine, len(read.lost)
    epoch = machine.state.epoch + lost // EPOCH_BYTES_MIN + 1
    jump = Entry(parts=(EpochStarted(epoch=epoch, position=machine.state.position + lost + 1),))
    machine.apply(jump)
    yield _line(jump)
    now = {"at_s": 0.0, "wall_s": time.time()}
    happened: list[on.Event] = [on.EpochBegan(run="", **now)]
    happened += [_revoked(lease, now["wall_s"]) for lease in machine.state.leases]
    for event in happened:
        for entry in machine.handle(event).changes:
            yield _line(entry)


def _revoked(lease: LeaseId, wall_s: float) -> on.ReleaseAsked:
    return on.ReleaseAsked(
        lease=lease, reason=EndReason.REVOKED, detail="the journal was repaired",
        session=SessionId("repair"), reply_to="0.0", at_s=0.0, wall_s=wall_s,
    )  # fmt: skip


def _line(entry: Entry) -> bytes:
    return encode_group(b"[" + encode_entry(entry) + b"]")


def _replace(path: Path, data: bytes) -> str:
    """The new journal in the old one's place; where the old one is now."""
    new = path.with_suffix(".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(data)
        file.flush()
        os.fsync(fd)
    kept = _free_name(path)
    os.link(path, kept)  # both names stand for the old one until the next line
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return str(kept)


def _free_name(path: Path) -> Path:
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return kept
