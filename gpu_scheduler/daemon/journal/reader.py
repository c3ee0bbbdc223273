"""A journal as a daemon and its operator read it: the file, the note beside it, the entries.

What a newer version wrote in addition (a key, a parameter, a change that may be ignored) is not
damage: it is passed over and named. A kind of change or a value that this version cannot do without
is not damage either, but nothing can be granted without it: the error names the version that wrote
it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.format import (
    JournalDamage,
    Mark,
    Scanned,
    body_of,
    encode_group,
    encode_header,
    scan,
    split_group,
)
from gpu_scheduler.daemon.journal.sync_marker import read_marker
from gpu_scheduler.protocol.changes import Entry, EpochStarted, decode_entry

logger = logging.getLogger(__name__)

_BUILD = re.compile(rb'\["epoch_started",\{[^{}]*"build":"([^"\\]{1,40})"')
_INDEX = re.compile(r"\[\d+\]")
#: Named in a warning; a newer version adds few.
SHOWN_MAX = 20


def read_journal(path: Path) -> Scanned:
    """The journal and the note beside it. Raises JournalDamage, INVALID for another version's.

    A missing or empty journal is a new one only if the note knows of no synced line either.
    """
    note = read_marker(path.parent)
    data = path.read_bytes() if path.exists() else b""
    scanned = scan(data, str(path), note.mark)
    if note.mark is None and (scanned.version > 1 or (note.there and scanned.version == 0)):
        why = "cannot be read" if note.there else "is missing"
        text = f"the note beside it of what was synced ({path.name}.synced) {why}, so nobody knows "
        text += "whether its end is there; a copy needs the whole state folder"
        raise JournalDamage(str(path), text, scanned, None)
    return scanned


@dataclass(slots=True)
class Entries:
    """Decodes groups in their order; remembers who wrote them and what was passed over."""

    path: Path
    build: str  #: version of the build that wrote what comes next; "" = not known
    passed: dict[str, None] = field(default_factory=dict)

    def of(self, group: bytes) -> list[Entry]:
        """The entries of one group. Raises INTERNAL for what only another version can read."""
        passed: list[str] = []
        try:
            entries = [decode_entry(text, passed) for text in split_group(group)]
        except AppError as error:
            if (found := _BUILD.search(group)) is not None:  # its run begins in this very group
                self.build = found[1].decode()
            text = self._needs_another(error.message)
            raise AppError(ErrorCode.INTERNAL, text) from None
        self.passed.update(dict.fromkeys(_INDEX.sub("[]", key) for key in passed))
        for part in (part for entry in entries for part in entry.parts):
            if isinstance(part, EpochStarted):
                self.build = part.build
        return entries

    def all_of(self, groups: Iterable[bytes]) -> tuple[Entry, ...]:
        return tuple(entry for group in groups for entry in self.of(group))

    def _needs_another(self, why: str) -> str:
        wrote = f"version {self.build} of ssgmd" if self.build else "another version of ssgmd"
        text = f"{self.path} is whole, but holds an entry that this version cannot read ({BUILD}): "
        text += f"{why}. Start the version that wrote it ({wrote}), or a newer one; do not repair "
        return text + "the journal, its leases live on"


def warn_of_passed(what: object, passed: Iterable[str]) -> None:
    """Tell once what is ignored of what a newer version wrote."""
    names = list(passed)
    if not names:
        return
    shown = ", ".join(names[:SHOWN_MAX])
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    text = "%s holds what a newer version wrote; this version (%s) ignores it: %s%s"
    logger.warning(text, what, BUILD, shown, more, extra={"event": "newer_version"})


def rewritten(groups: Iterable[bytes], wrote: str = BUILD) -> tuple[bytes, Mark]:
    """A whole journal of these groups, as a new chain; and the mark of its last line."""
    header, mark = encode_header(wrote)
    lines = [header]
    for body in groups:
        line, mark = encode_group(body, mark)
        lines.append(line)
    return b"".join(lines), mark


def as_snapshot(groups: Iterable[bytes], last: Mark) -> bytes:
    """A whole journal with the entries of these groups, the last of which was the line `last`."""
    header, mark = encode_header(BUILD, last)
    entries = [bytes(entry) for group in groups for entry in split_group(group)]
    return header + encode_group(body_of(entries), mark)[0]
