"""The format of the journal: one line per synced group, chained; and how damage shows.

    crc32 SP {"journal":"ssgmd","version":3,"id":…,"number":…,"link":…,"snapshot":…,"wrote":…} LF
    crc32 SP link SP number SP JSON LF         and so on: a list of entries per line

`crc32` (8 hex digits) is that of the rest of the line, `link` the `crc32` of the line before it, so
each checksum stands for everything up to its line; numbers rise by one. The first line links to the
header's checksum. A missing, doubled, swapped or changed line therefore never checks.

A compacted journal begins with a snapshot: the header has `snapshot`, and its line the header's
`number` N and stands for all lines up to N; line N+1 links to the header's `link`, the checksum of
the line N that the snapshot replaced. So the history's chain continues through a compaction, and a
note of the last synced line (sync_marker.py) is good for the file before it and the one after it.

Groups are synced one after the other, so a crash can tear only the last line. A torn line has no
newline or holds NUL bytes (blocks that were allocated ahead and never written), and is not noted as
synced. Everything else that does not check is damage, and nothing may be granted on a guess: the
daemon refuses to start.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from corekit.errors import AppError, ErrorCode, invalid

VERSION = 3

_SPLIT = msgspec.json.Decoder(list[msgspec.Raw])


class Mark(NamedTuple):
    """One line of the history: its number, and its checksum, which stands for all before it."""

    number: int
    crc: bytes  #: 8 hex digits


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a journal. Keys of a newer build are passed over: they change no line."""

    journal: str
    version: int
    id: str = ""  #: random: lines of two journals never link
    number: int = 0  #: of the line that the snapshot replaces
    link: str = ""  #: checksum of that line
    snapshot: bool = False
    wrote: str = ""  #: version of the build that wrote this file's beginning


@dataclass(frozen=True, slots=True)
class Scanned:
    """A journal as it was read."""

    version: int  #: of its format; 0: there is none yet
    groups: tuple[bytes, ...]  #: JSON text of every whole line after the header, as of `VERSION`
    lines: tuple[int, ...]  #: at which byte each of them begins
    end: int  #: bytes up to the end of the last whole line; what follows is torn or unused
    torn: int  #: bytes of a torn last line, without the unused space behind it
    last: Mark | None = None  #: the last whole line; None: no chain yet
    wrote: str = ""  #: version of the build that wrote its beginning


class JournalDamage(AppError):
    """A journal that cannot be trusted from some byte on: what is wrong, and the way out."""

    def __init__(self, name: str, why: str, sound: Scanned, synced: int | None) -> None:
        text = f"{name} is damaged at byte {sound.end}: {why}. Restore the whole state folder from "
        text += f"a copy, or keep what is sound: ssgmd --state {Path(name).parent} journal repair"
        super().__init__(ErrorCode.INTERNAL, text, byte=sound.end)
        self.why = why
        self.sound = sound  #: what lies before the damage
        self.synced = synced  #: number of the last line that was, as far as noted; None: not known


def no_journal(where: Path | str) -> AppError:
    """The error for a command on a folder or log without a journal."""
    return AppError(ErrorCode.NOT_FOUND, f"{where} holds no journal")


class ParsedLine(NamedTuple):
    link: bytes
    number: int
    body: bytes
    crc: bytes


# ---------------------------------------------------------------------- writing


def encode_header(wrote: str, replaces: Mark | None = None) -> tuple[bytes, Mark]:
    """The first line of a new journal, and the mark that its first group comes after.

    With `replaces` a snapshot follows that stands for all lines up to that one.
    """
    header = Header(
        journal="ssgmd",
        version=VERSION,
        id=secrets.token_hex(8),
        wrote=wrote,
        number=0 if replaces is None else replaces.number,
        link="" if replaces is None else replaces.crc.decode(),
        snapshot=replaces is not None,
    )
    line, crc = _sealed(msgspec.json.encode(header))
    # the snapshot itself has the number of the line that it replaces
    return line, Mark(header.number - header.snapshot, crc)


def encode_group(body: bytes, after: Mark) -> tuple[bytes, Mark]:
    """The line of one JSON text that comes after another line, and its mark."""
    number = after.number + 1
    line, crc = _sealed(b"%s %d %s" % (after.crc, number, body))
    return line, Mark(number, crc)


def _sealed(rest: bytes) -> tuple[bytes, bytes]:
    crc = b"%08x" % zlib.crc32(rest)
    return b"%s %s\n" % (crc, rest), crc


# ---------------------------------------------------------------------- reading


def scan(data: bytes, name: str, noted: Mark | None = None) -> Scanned:
    """Read a journal of which `noted` is known to have been synced; None: nothing is known.

    Raises JournalDamage, INVALID for another version's.
    Without a whole header there are no groups: nothing was ever answered from it.
    """
    used = data.rstrip(b"\0")
    newline = used.find(b"\n")
    body = None if newline < 0 else _checked(used[:newline])
    if body is None:
        if noted is not None and noted.number > 0:
            why = "its first line does not check" if used else "it is empty"
            why += f", but {noted.number} lines were synced"
            raise JournalDamage(name, why, _NOTHING, noted.number)
        if used and not _is_torn(used, 0, newline):
            raise JournalDamage(name, "its first line does not check", _NOTHING, 0)
        return Scanned(0, (), (), 0, len(used))
    header = _header(body, name)
    return _Chain(used, name, noted, header, used[:8]).scan(newline + 1)


_NOTHING = Scanned(0, (), (), 0, 0)


def split_group(group: bytes) -> list[msgspec.Raw]:
    """The JSON texts of the entries of one line. Raises INVALID when it is not a list."""
    try:
        return _SPLIT.decode(group)
    except msgspec.MsgspecError as error:
        raise invalid(f"journal line: expected a list of entries: {error}") from None


def whole_lines(data: bytes) -> list[int]:
    """Numbers of the lines in what lies behind some damage that check for themselves."""
    found = (read_line(line) for line in data.split(b"\n"))
    return [line.number for line in found if line is not None]


def _header(body: bytes, name: str) -> Header:
    try:
        header = msgspec.json.decode(body, type=Header)
    except msgspec.MsgspecError:
        header = Header(journal="", version=0)
    if header.journal == "ssgmd" and header.version == VERSION:
        return header
    shown = body[:80].decode(errors="replace")
    text = f"{name} is not a journal of this version of ssgmd (first line {shown})"
    by = f" ({header.wrote})" if header.wrote else ""
    raise AppError(ErrorCode.INVALID, f"{text}; start the version that wrote it{by}")


class _Chain:
    """Reads the lines behind the header, each by what the one before it promises."""

    def __init__(
        self, used: bytes, name: str, noted: Mark | None, header: Header, own: bytes
    ) -> None:
        self._used = used
        self._name = name
        self._noted = noted
        self._header = header
        #: What the next line links to; of a snapshot the header itself.
        self._last = Mark(header.number - header.snapshot, own)
        self._foreign = False  #: the note is not of this history
        self._lines: list[int] = []
        self._groups: list[bytes] = []

    def scan(self, start: int) -> Scanned:
        torn = 0
        self._compare()
        while start < len(self._used):
            newline = self._used.find(b"\n", start)
            line = None if newline < 0 else read_line(self._used[start:newline])
            if line is None:
                torn = self._torn(start, newline)
                break
            self._follow(line, start)
            start = newline + 1
        noted, last = self._noted, self._last
        if self._snapshot_due or (noted is not None and noted.number > last.number):
            until = last.number + 1 if noted is None else max(noted.number, last.number + 1)
            missing = _lines_from_to(last.number + 1, until)
            self._fail(start, f"it ends too early: {missing}, synced before, is missing")
        if self._foreign:
            why = "the sync marker belongs to another journal, so it is unknown whether "
            why += "its end is there"
            raise JournalDamage(self._name, why, self._sound(start, torn), None)
        return self._sound(start, torn)

    def _sound(self, end: int, torn: int) -> Scanned:
        version, wrote = self._header.version, self._header.wrote
        return Scanned(
            version, tuple(self._groups), tuple(self._lines), end, torn, self._last, wrote
        )

    @property
    def _snapshot_due(self) -> bool:
        return self._header.snapshot and not self._groups

    def _follow(self, line: ParsedLine, start: int) -> None:
        due = self._last.number + 1
        if line.number != due:
            self._fail(start, f"line {line.number} stands where line {due} belongs")
        if line.link != self._last.crc:
            self._fail(start, f"line {due} does not follow the line before it")
        replaced = self._header.link.encode() if self._snapshot_due else line.crc
        self._groups.append(line.body)
        self._lines.append(start)
        self._last = Mark(due, replaced)
        self._compare()

    def _compare(self) -> None:
        noted = self._noted
        if self._snapshot_due or noted is None or noted.number != self._last.number:
            return  # of a snapshot due, it is the line before the one that it replaces
        if noted != self._last:
            self._foreign, self._noted = True, None

    def _torn(self, start: int, newline: int) -> int:
        """Bytes of a last line that was never synced. Raises INTERNAL when it may have been."""
        due = self._last.number + 1
        synced = self._noted is not None and self._noted.number >= due
        if synced or self._snapshot_due or not _is_torn(self._used, start, newline):
            self._fail(start, f"line {due}, which was synced, does not check")
        return len(self._used) - start

    def _fail(self, start: int, why: str) -> NoReturn:
        synced = 0 if self._noted is None else self._noted.number
        raise JournalDamage(self._name, why, self._sound(start, 0), synced)


def _checked(line: bytes) -> bytes | None:
    """The content of a line behind its checksum, if the checksum is right."""
    rest = line[9:]
    if len(line) < 10 or line[8:9] != b" ":
        return None
    return rest if b"%08x" % zlib.crc32(rest) == line[:8] else None


def read_line(line: bytes) -> ParsedLine | None:
    """A line of the chain whose checksum holds."""
    rest = _checked(line)
    fields = [] if rest is None else rest.split(b" ", 2)
    if len(fields) != 3 or not fields[1].isdigit():
        return None
    return ParsedLine(fields[0], int(fields[1]), fields[2], line[:8])


def _is_torn(used: bytes, start: int, newline: int) -> bool:
    """Whether the last line looks like one that was never written as a whole."""
    if newline < 0:  # it never ended; but a whole one with another byte for its newline did
        return _checked(used[start:-1]) is None
    rest = used[newline + 1 :].split(b"\n")
    return b"\0" in used[start:newline] and all(_checked(line) is None for line in rest)


def _lines_from_to(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"what lines {first} to {last} held"


def body_of(entries: Sequence[bytes]) -> bytes:
    """The JSON text of one group."""
    return b"[" + b",".join(entries) + b"]"
