"""The format of the journal: one line per group of entries, chained; every engine holds the same.

    crc32 SP {"journal":"ssgmd","version":4,"id":…,"number":…,"link":…,"snapshot":…,"wrote":…} LF
    crc32 SP link SP number SP JSON LF         and so on: a list of entries per line

`crc32` (8 hex digits) is that of the rest of the line, `link` the `crc32` of the line before it, so
each checksum stands for everything up to its line; numbers rise by one. The first line links to the
header's checksum. A missing, doubled, swapped or changed line therefore never checks, wherever it
is stored; whether the end is there, the engine knows (daemon/log/port.py).

A snapshot is a header with `snapshot` and one line, which has the header's `number` N and stands
for all lines up to N; line N+1 links to the header's `link`, the checksum of the line N that the
snapshot replaced. So the history's chain continues through a compaction.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.log.port import LogDamage

VERSION = 4

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
    wrote: str = ""  #: version of the build that wrote it


class Beginning(NamedTuple):
    """A header, alone or with its snapshot."""

    last: Mark  #: what the next line links to
    wrote: str
    group: bytes | None  #: JSON text of the snapshot


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


def encode_snapshot(entries: Iterable[bytes], last: Mark) -> bytes:
    """Header and line of a snapshot of these entries, in place of all lines up to `last`."""
    header, before = encode_header(BUILD, last)
    return header + encode_group(body_of(list(entries)), before)[0]


def body_of(entries: Sequence[bytes]) -> bytes:
    """The JSON text of one group."""
    return b"[" + b",".join(entries) + b"]"


def _sealed(rest: bytes) -> tuple[bytes, bytes]:
    crc = b"%08x" % zlib.crc32(rest)
    return b"%s %s\n" % (crc, rest), crc


# ---------------------------------------------------------------------- reading


def read_beginning(data: bytes, where: str, seq: int) -> Beginning:
    """The header in an item, or header and line of a snapshot.

    Raises LogDamage, INVALID for another version's.
    """
    first, _, rest = data.partition(b"\n")
    body = _checked(first)
    if body is None:
        raise LogDamage(where, seq, "its first line does not check")
    header = _header(body, where)
    own = first[:8]
    if not header.snapshot:
        return Beginning(Mark(0, own), header.wrote, None)
    line = read_line(rest.removesuffix(b"\n"))
    if line is None or (line.number, line.link) != (header.number, own):
        raise LogDamage(where, seq, "its snapshot does not check")
    return Beginning(Mark(header.number, header.link.encode()), header.wrote, line.body)


def read_line(line: bytes) -> ParsedLine | None:
    """A line of the chain whose checksum holds."""
    fields = line.split(b" ", 3)
    if len(fields) != 4 or not fields[2].isdigit():
        return None
    crc, link, number, body = fields
    if crc != b"%08x" % zlib.crc32(memoryview(line)[9:]):
        return None
    return ParsedLine(link, int(number), body, crc)


def split_group(group: bytes) -> list[msgspec.Raw]:
    """The JSON texts of the entries of one line. Raises INVALID when it is not a list."""
    try:
        return _SPLIT.decode(group)
    except msgspec.MsgspecError as error:
        raise invalid(f"journal line: expected a list of entries: {error}") from None


def no_journal(where: str) -> AppError:
    """The error for a command on a folder or log without a journal."""
    return AppError(ErrorCode.NOT_FOUND, f"{where} holds no journal")


def _header(body: bytes, where: str) -> Header:
    try:
        header = msgspec.json.decode(body, type=Header)
    except msgspec.MsgspecError:
        header = Header(journal="", version=0)
    if header.journal == "ssgmd" and header.version == VERSION:
        return header
    shown = body[:80].decode(errors="replace")
    text = f"{where} is not a journal of this version of ssgmd (first line {shown})"
    by = f" ({header.wrote})" if header.wrote else ""
    raise AppError(ErrorCode.INVALID, f"{text}; start the version that wrote it{by}")


def _checked(line: bytes) -> bytes | None:
    """The content of a line behind its checksum, if the checksum is right."""
    rest = line[9:]
    if len(line) < 10 or line[8:9] != b" ":
        return None
    return rest if b"%08x" % zlib.crc32(rest) == line[:8] else None
