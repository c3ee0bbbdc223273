"""The journal's bytes: one line per synced group, and what a damaged one may be.

    crc32 (8 hex digits) SP JSON LF        first line: {"journal":"ssgmd","version":1}
                                           then lists of entries

A group is one line and groups are synced one after the other, so a crash can tear only the last
line; whatever was answered lies before it. A torn line has no newline or holds NUL bytes (blocks
that were allocated ahead and never written). Everything else that does not check is corruption,
and nothing may be granted on a guess: the daemon refuses to start.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from corekit.errors import AppError, ErrorCode, invalid

HEADER = b'{"journal":"ssgmd","version":1}'

_SPLIT = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Scanned:
    """A journal as it was read."""

    groups: tuple[bytes, ...]  #: JSON text of every whole line after the header
    end: int  #: bytes up to the end of the last whole line; what follows is torn or unused
    torn: int  #: bytes of a torn last line, without the unused space behind it


def encode_group(body: bytes) -> bytes:
    """The line of one JSON text."""
    return b"%08x %s\n" % (zlib.crc32(body), body)


def scan(data: bytes, name: str) -> Scanned:
    """Read a journal. Raises INTERNAL naming the byte and the way out when it is corrupt.

    An empty or torn header gives no groups and end 0: nothing was ever answered from it.
    """
    used = data.rstrip(b"\0")
    groups: list[bytes] = []
    start = 0
    while start < len(used):
        newline = used.find(b"\n", start)
        line = used[start:] if newline < 0 else used[start:newline]
        body = _checked(line)
        if newline < 0 or body is None:
            _must_be_torn(used, start, newline, name)
            return _scanned(groups, start, len(used) - start, name)
        groups.append(body)
        start = newline + 1
    return _scanned(groups, start, 0, name)


def split_group(group: bytes) -> list[msgspec.Raw]:
    """The JSON texts of the entries of one line. Raises INVALID when it is no list."""
    try:
        return _SPLIT.decode(group)
    except msgspec.MsgspecError as error:
        raise invalid(f"journal line: expected a list of entries: {error}") from None


def _scanned(groups: Sequence[bytes], end: int, torn: int, name: str) -> Scanned:
    if groups and groups[0] != HEADER:
        first = groups[0].decode(errors="replace")
        text = f"{name} is no journal of this version of ssgmd (first line {first:.80})"
        raise AppError(ErrorCode.INVALID, f"{text}; start the version that wrote it")
    return Scanned(tuple(groups[1:]), end, torn)


def _checked(line: bytes) -> bytes | None:
    """The JSON of a line whose checksum holds."""
    body = line[9:]
    if len(line) < 10 or line[8:9] != b" ":
        return None
    return body if b"%08x" % zlib.crc32(body) == line[:8] else None


def _must_be_torn(used: bytes, start: int, newline: int, name: str) -> None:
    if newline < 0:  # it never ended; but a whole one with another byte for its newline did
        torn = _checked(used[start:-1]) is None
    else:
        rest = used[newline + 1 :].split(b"\n")
        torn = b"\0" in used[start:newline] and all(_checked(line) is None for line in rest)
    if torn:
        return
    text = f"{name} is damaged at byte {start}: a line that was synced does not check. Restore the "
    text += f"file from a copy, or keep what is sound: ssgmd --state {Path(name).parent} "
    raise AppError(ErrorCode.INTERNAL, f"{text}journal repair", byte=start)
