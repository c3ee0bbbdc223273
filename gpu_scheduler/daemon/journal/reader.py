"""Reading a journal: the file, the sync marker beside it, the entries.

What a newer version added (a key, a parameter, an ignorable change) is not damage: it is ignored,
with a warning. An unknown change that is not ignorable, or an unknown value, is not damage either,
but nothing can be granted without it: the error names the version that wrote it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.core.state.state import UNKNOWN_MAX
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
from gpu_scheduler.protocol.changes import Entry, EpochStarted, Unknown, decode_entry

_BUILD = re.compile(rb'\["epoch_started",\{[^{}]*"build":"([^"\\]{1,40})"')
_INDEX = re.compile(r"\[\d+\]")


def read_journal(path: Path) -> Scanned:
    """Read journal and marker. Raises JournalDamage, INVALID for a journal of another version.

    A missing or empty journal is a new one only if no synced line is marked either.
    """
    marker = read_marker(path.parent)
    data = path.read_bytes() if path.exists() else b""
    scanned = scan(data, str(path), marker.mark)
    if marker.mark is None and (scanned.version or (marker.exists and scanned.version == 0)):
        why = "cannot be read" if marker.exists else "is missing"
        text = f"the marker of its last synced line ({path.name}.synced) {why}, so its end may be "
        text += "missing; a copy needs the whole state folder"
        raise JournalDamage(str(path), text, scanned, None)
    return scanned


@dataclass(slots=True)
class Entries:
    """Decodes groups in their order; remembers which build wrote them and what was ignored."""

    name: str  #: of the journal, for messages
    build: str  #: version of the build that wrote the next entries; "" = unknown
    ignored: dict[str, None] = field(default_factory=dict)  #: keys and changes of a newer version
    _kept: Counter[str] = field(default_factory=Counter)  #: kinds of change that a snapshot keeps

    def of(self, group: bytes) -> list[Entry]:
        """Decode one group. Raises INTERNAL for entries that only another version can read."""
        ignored: list[str] = []
        try:
            entries = [decode_entry(text, ignored) for text in split_group(group)]
        except AppError as error:
            if (found := _BUILD.search(group)) is not None:  # its run begins in this very group
                self.build = found[1].decode()
            text = self._needs_another(error.message)
            raise AppError(ErrorCode.INTERNAL, text) from None
        self.ignored.update(dict.fromkeys(_INDEX.sub("[]", key) for key in ignored))
        for part in (part for entry in entries for part in entry.parts):
            if isinstance(part, EpochStarted):
                self.build = part.build
            elif isinstance(part, Unknown):
                self._kept[part.name] += 1
        return entries

    @property
    def compaction_loses(self) -> bool:
        """Whether the next snapshot would lack something that only a newer version knows."""
        return self.ignored.keys() > self._kept.keys() or self._kept.total() > UNKNOWN_MAX

    def all_of(self, groups: Iterable[bytes]) -> tuple[Entry, ...]:
        return tuple(entry for group in groups for entry in self.of(group))

    def _needs_another(self, why: str) -> str:
        wrote = f"version {self.build} of ssgmd" if self.build else "another version of ssgmd"
        text = f"{self.name} is whole, but holds an entry that this version cannot read ({BUILD}): "
        text += f"{why}. Start the version that wrote it ({wrote}), or a newer one; do not repair "
        return text + "the journal, its leases live on"


def rewritten(groups: Iterable[bytes], wrote: str = BUILD) -> tuple[bytes, Mark]:
    """The bytes of a journal of these groups, as a new chain; and the mark of its last line."""
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
