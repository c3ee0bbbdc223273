"""The form of a log in a file: one record after the other, each with a checksum of its own.

    crc32 SP kind seq SP length SP data LF      kind: I, an item, or S, a snapshot; only the first

`crc32` (8 hex digits) is that of everything behind it up to the data's end, so a record is whole or
it is none. Behind the records is space that was allocated ahead: NUL bytes.

Records are synced one after the other, so a crash can tear only the last one. What does not check
is a torn record when it is too short, or holds NUL bytes (blocks that were never written), nothing
whole is behind it, and the sync marker does not name it. Everything else that does not check, or
has a number for the second time, is damage.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_scheduler.daemon.log.port import LogDamage
from gpu_scheduler.daemon.log.sync_marker import mark_in

ITEM, SNAPSHOT = b"I", b"S"
_HEAD = re.compile(rb"([0-9a-f]{8}) ([IS])(\d{1,19}) (\d{1,12}) ")


class Place(NamedTuple):
    """The place of a record's data, and its checksum."""

    start: int
    end: int
    crc: bytes


@dataclass(slots=True)
class Contents:
    """The records of a file, by their places."""

    snapshot_seq: int = 0
    snapshot: Place | None = None
    items: dict[int, Place] = field(default_factory=dict)
    rewritten: int = 0  #: times that the file was replaced
    end: int = 0  #: where the next record belongs
    torn: int = 0  #: bytes of a torn last record
    last: int = 0  #: the highest number, of what is there or was synced
    damage: LogDamage | None = None


def encode_record(kind: bytes, seq: int, data: bytes) -> tuple[bytes, bytes]:
    """A record, and its checksum."""
    head = b"%s%d %d " % (kind, seq, len(data))
    crc = b"%08x" % zlib.crc32(data, zlib.crc32(head))
    return b"".join((crc, b" ", head, data, b"\n")), crc


def record_at(data: bytes, at: int) -> tuple[bytes, int, Place] | None:
    """Kind, number and place of a whole record."""
    head = _HEAD.match(data, at)
    if head is None:
        return None
    end = head.end() + int(head[4])
    if data[end : end + 1] != b"\n":
        return None
    if b"%08x" % zlib.crc32(memoryview(data)[head.start(2) : end]) != head[1]:
        return None
    return head[2], int(head[3]), Place(head.end(), end, head[1])


def scan(data: bytes, marker: bytes | None, where: str) -> Contents:
    """The records of a file beside a marker; None: there is no marker."""
    used = len(data.rstrip(b"\0"))
    contents, mark = Contents(), None if marker is None else mark_in(marker)
    behind = _read(contents, data, used)
    sound = max((*contents.items, contents.snapshot_seq), default=0)
    synced = 0 if mark is None else mark.seq
    contents.last = max(sound, synced, *behind, 0)
    contents.rewritten = 0 if mark is None else mark.rewritten
    is_broken = contents.end < used
    why = ""
    if behind or (is_broken and (synced > sound or not _is_torn(data, contents.end, used))):
        why = "it does not check, or does not belong there"
    elif synced > sound:
        items = f"item {synced} is" if synced == sound + 1 else f"items {sound + 1} to {synced} are"
        why = (
            f"it ends too early: {items} missing, synced before"
            if used
            else (f"it is empty, but {synced} items were synced")
        )
    elif mark is None and (used or marker is not None):
        why = "the marker of its last synced item (journal.synced) "
        why += "is missing" if marker is None else "cannot be read"
        why += ", so its end may be missing; a copy needs the whole state folder"
    elif mark is not None and (place := contents.items.get(synced)) and place.crc != mark.crc:
        why = "the sync marker belongs to another journal, so its end may be missing"
    if why:
        lost = data[contents.end : used]
        why += f" (byte {contents.end})"
        is_counted = mark is not None and "another" not in why
        contents.damage = LogDamage(where, sound + 1, why, lost=lost, is_counted=is_counted)
        contents.end = used
    elif is_broken:
        contents.torn = used - contents.end
    return contents


def _is_torn(data: bytes, at: int, used: int) -> bool:
    """Whether what does not check looks like a record that was never written as a whole."""
    head = _HEAD.match(data, at)
    if head is not None:
        is_short = head.end() + int(head[4]) >= used
    else:
        is_short = data.find(b"\n", at, used) < 0
    return is_short or data.find(b"\0", at, used) >= 0


def _read(contents: Contents, data: bytes, used: int) -> list[int]:
    """Note the records up to the first that does not check; numbers of whole ones behind it."""
    behind: list[int] = []
    at, is_sound = 0, True
    while at < used:
        record = record_at(data, at)
        if record is None:
            is_sound = False
            at = data.find(b"\n", at) + 1 or used
            continue
        kind, seq, place = record
        is_new = seq > contents.snapshot_seq and seq not in contents.items
        is_sound = is_sound and is_new and (kind == ITEM or at == 0)
        at = place.end + 1
        if not is_sound:
            behind.append(seq)
            continue
        if kind == ITEM:
            contents.items[seq] = place
        else:
            contents.snapshot_seq, contents.snapshot = seq, place
        contents.end = at
    return behind
