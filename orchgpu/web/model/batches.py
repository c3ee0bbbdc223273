"""Changes in numbered batches, the newest of them kept, so that a browser resumes. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from corekit.values import Value

#: Batches that are kept: two minutes at four a second.
KEPT_MAX = 480
#: More changes in one batch are not listed: the page loads its views again.
CHANGES_MAX = 500

#: One change: `event` names the kind, the other keys are those of the changed thing.
Change = Mapping[str, object]


class Batch(Value):
    """Changes that browsers get together."""

    number: int
    changes: Sequence[Change]
    overflow: bool = False  #: there were more than `CHANGES_MAX`


class Batches:
    """The newest batches of one run of the server."""

    def __init__(self, run: str) -> None:
        self._run = run  #: distinguishes the numbers of this run from those of others
        self._kept: deque[Batch] = deque(maxlen=KEPT_MAX)
        self._open: dict[tuple[str, str], Change] = {}
        self._overflow = False
        self._number = 0

    @property
    def number(self) -> int:
        return self._number

    @property
    def pending(self) -> bool:
        return bool(self._open) or self._overflow

    def note(self, kind: str, name: str, change: Change) -> None:
        """Add a change to the open batch; it replaces an earlier one of the same thing."""
        self._open.pop((kind, name), None)
        if len(self._open) >= CHANGES_MAX:
            self._overflow = True
        else:
            self._open[(kind, name)] = {"event": kind, **change}

    def close(self) -> Batch | None:
        """The open batch, which is kept; None: nothing changed."""
        if not self.pending:
            return None
        self._number += 1
        batch = Batch(
            number=self._number, changes=tuple(self._open.values()), overflow=self._overflow
        )
        self._kept.append(batch)
        self._open, self._overflow = {}, False
        return batch

    def id_of(self, number: int) -> str:
        """The id of an event of the stream, which a browser returns as `Last-Event-ID`."""
        return f"{self._run}-{number}"

    def since(self, last_id: str | None) -> Sequence[Batch] | None:
        """The batches after the one with that id; None: some are missing. No id: none."""
        if last_id is None:
            return ()
        run, _, text = last_id.rpartition("-")
        if run != self._run or not text.isdecimal() or int(text) > self._number:
            return None
        number = int(text)
        oldest = self._kept[0].number if self._kept else self._number + 1
        if number + 1 < oldest:
            return None
        return [batch for batch in self._kept if batch.number > number]
