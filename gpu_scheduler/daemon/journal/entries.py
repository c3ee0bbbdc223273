"""Decoding the entries of a journal, also those of a newer version.

What a newer version added (a key, a parameter, an ignorable change) is not damage: it is ignored,
with a warning. An unknown change that is not ignorable, or an unknown value, is not damage either,
but nothing can be granted without it: the error names the version that wrote it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.core.state.state import UNKNOWN_MAX
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.format import split_group
from gpu_scheduler.protocol.changes import Entry, EpochStarted, Unknown, decode_entry

_BUILD = re.compile(rb'\["epoch_started",\{[^{}]*"build":"([^"\\]{1,40})"')
_INDEX = re.compile(r"\[\d+\]")


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
