"""The newest job records, kept current by the scheduler's changes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.ids import JobId
from gpu_scheduler.model import RETRY_AT, Record, Step
from gpu_scheduler.protocol import watch as words
from gpu_scheduler.protocol.answers import RecordPush

#: Times of a record that are not moments of its writes.
_NOT_WRITTEN = (Step.RECEIVED.value, RETRY_AT)


class LiveRecords:
    """The `most` newest records in the scheduler's order: read once, then changed by its pushes.

    Changes that arrive during a reading wait for its end. A change may be older than the reading
    that is already there, because stream and queries have connections of their own; it is left out.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.readings = 0  #: number of the present reading
        self._complete = False
        self._cut = False  #: the scheduler has older records than these
        self._records: dict[JobId, Record] = {}  # the oldest first
        self._unchanged: dict[JobId, None] = {}  # as they were read
        self._waiting: dict[JobId, RecordPush] = {}  # changes during a reading

    @property
    def is_stale(self) -> bool:
        """True while the records are to be read: at first, and when changes may be missing."""
        return not self._complete or (self._cut and 2 * len(self._records) < self.most)

    def expire(self) -> None:
        """Changes may be missing: all records are to be read again."""
        self._complete = False
        self.readings += 1
        self._waiting.clear()

    def read(self, newest: Sequence[Record], reading: int) -> None:
        """Take a reading, the newest record first; one that began before `expire` is left out."""
        if reading != self.readings:
            return
        self._complete, self._cut = True, len(newest) >= self.most
        self._records = {record.holder: record for record in reversed(newest[: self.most])}
        self._unchanged = dict.fromkeys(self._records)
        waiting, self._waiting = list(self._waiting.values()), {}
        for push in waiting:
            self.change(push)

    def take(self, change: object) -> None:
        """Take one change of any kind; those that concern no record are left out."""
        match change:
            case words.Started() | words.Reset():
                self.expire()
            case RecordPush():
                self.change(change)

    def change(self, push: RecordPush) -> None:
        if not self._complete:
            self._waiting.pop(push.holder, None)
            self._waiting[push.holder] = push
            return
        if push.record is None:
            self._records.pop(push.holder, None)
            self._unchanged.pop(push.holder, None)
        elif not self._has_newer(push.record):
            self._unchanged.pop(push.holder, None)
            self._put(push.record)

    def newest(self) -> list[Record]:
        return list(reversed(self._records.values()))

    def _has_newer(self, record: Record) -> bool:
        if record.holder not in self._unchanged:
            return False
        known = self._records[record.holder]
        return (record.revision, record.updated_s) < (known.revision, known.updated_s)

    def _put(self, record: Record) -> None:
        """As the scheduler's own state: a new record and one that ends become the newest."""
        old = self._records.get(record.holder)
        if old is None and self._is_beyond(record):
            return
        if old is not None and old.step is not Step.ENDED and record.step is Step.ENDED:
            del self._records[record.holder]
        self._records[record.holder] = record
        while len(self._records) > self.most:
            oldest = next(iter(self._records))
            del self._records[oldest]
            self._unchanged.pop(oldest, None)
            self._cut = True

    def _is_beyond(self, record: Record) -> bool:
        """True for the record of an old job that still lives, older than those that are kept."""
        oldest = next(iter(self._records.values()), None)
        return self._cut and oldest is not None and _placed_s(record) < _placed_s(oldest)


def _placed_s(record: Record) -> float:
    """The moment of a record's place in the order: its end, or its newest attempt's begin."""
    if record.step is Step.ENDED:
        return record.times.get(Step.ENDED, record.updated_s)
    written = [at_s for name, at_s in record.times.items() if name not in _NOT_WRITTEN]
    return min(written, default=record.updated_s)
