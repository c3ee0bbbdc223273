"""The journal of ssgmd: groups of entries as chained lines, in a log of any engine.

An entry, the effect of one event, is atomic. A group of entries is not: its actions wait for all of
it, so nothing of it was answered when only its beginning is there, as if the group had been
smaller. Lines are therefore cut between entries, and only an entry that is longer than an item is
cut into pieces, which its last one commits (log/item.py). A refusal instead would end the daemon,
again after each start, at the end of a session with thousands of leases.

A snapshot is stored while lines are appended, and only after its own line: one of a line that
another run wins would be a state that never was. Items up to the snapshot before it are trimmed
then, so that a standby that reads behind is not interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from corekit.aio.driver import DURABLE
from corekit.aio.newer import warn_ignored
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.copies import keep_copy
from gpu_scheduler.daemon.journal.disk_speed import DiskSpeed, ProcessorWait
from gpu_scheduler.daemon.journal.entries import Entries
from gpu_scheduler.daemon.journal.format import (
    Mark,
    body_of,
    encode_group,
    encode_header,
    encode_snapshot,
)
from gpu_scheduler.daemon.journal.reader import LogLine, LogReader, with_fences
from gpu_scheduler.daemon.log.item import RUN_LENGTH, encode_items
from gpu_scheduler.daemon.log.port import LocalLog, Log, LogAddress
from gpu_scheduler.daemon.log.registry import file_address, open_log
from gpu_scheduler.daemon.log.writer import LogWriter, RetryLimits
from gpu_scheduler.protocol.changes import Entry, Part, encode_entry, encode_parts

logger = logging.getLogger(__name__)

#: `open_log`, or what a test has in its place.
Opener = Callable[[LogAddress, float], Log]

#: Without a snapshot for this long one is written, if there are as many items as make a start slow
#: where each is a request.
SNAPSHOT_EVERY_S = 600.0
SNAPSHOT_ITEMS_MIN = 200
#: A journal is compacted above `compact_bytes_min`, and above so many times its last snapshot.
COMPACT_RATIO = 4
#: Checksum, link, number and brackets of a line, and the head of an item.
_LINE_OVERHEAD = 128
#: A put that lasts longer stops new grants until it is done.
STALLED_S = 1.0


@dataclass(slots=True)
class JournalFigures:
    """Counters for /metrics."""

    engine: str  #: scheme of the log's address
    syncs: int = 0
    sync_s: float = 0.0  #: spent in write + sync, summed
    entries: int = 0
    compactions: int = 0
    retries: int = 0  #: puts that were repeated
    bytes: int = 0  #: written, without snapshots


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """A log, and the folder for what does not belong into it."""

    address: LogAddress
    state: Path  #: old contents are kept there before a compaction would lose parts of them
    run: str = field(default_factory=lambda: secrets.token_hex(RUN_LENGTH // 2))
    call_s: float = 5.0  #: the longest time of one call
    retry: RetryLimits = field(default_factory=RetryLimits)


class Journal:
    """Everything durable of one scheduler; `recover` it, and `close` it in the end."""

    def __init__(
        self,
        settings: JournalSettings,
        opener: Opener = open_log,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        #: The state as parts, for compaction; to be set after recovery.
        self.snapshot: Callable[[], Iterable[Part]] | None = None
        self._opener = opener
        self._now_s = now_s
        self._log = self._open()
        self._local = self._log if isinstance(self._log, LocalLog) else None
        self.compact_bytes_min = self._log.limits.snapshot_bytes
        # an error of the own disk ends the daemon at once: nothing else repairs it
        retry = settings.retry if self._local is None else RetryLimits(within_s=0.0)
        self._writer = LogWriter(self._log, self.name, retry)
        self._figures = JournalFigures(engine=settings.address.scheme)
        self._seq = 0  #: of the newest item, put or about to be
        self._last = Mark(0, b"")  #: of the newest line, likewise
        self._fences: list[int] = []
        self._snapshot_seq = 0
        self._snapshot_bytes = 0
        self._compact_after_bytes = 0  #: since the snapshot; above 0 after a failure
        self._bytes = 0  #: since the snapshot
        self._has_newer = False
        self._since_s: float | None = None  #: begin of the put under way
        self._processor_wait = ProcessorWait()
        self._speed = DiskSpeed(self._processor_wait, now_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._compactor = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._compacting: Future[int | None] | None = None
        self._compact_from = (0, 0)  #: item of the snapshot being written, and bytes before it
        self._snapshot_s = now_s()  #: of the newest snapshot, or of the beginning

    @classmethod
    def in_folder(cls, folder: Path, opener: Opener = open_log) -> Journal:
        """The journal in a state folder, which its caller has locked."""
        return cls(JournalSettings(address=file_address(folder), state=folder), opener)

    def _open(self) -> Log:
        return self._opener(self.settings.address, self.settings.call_s)

    @property
    def name(self) -> str:
        """Path or address, for messages; without credentials."""
        return self.settings.address.text

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written; callable before recovery."""
        log = self._log
        found = next(log.read(1), None) is not None or log.newest_snapshot_seq() > 0
        return not found and log.last_seq(0) == 0

    @property
    def figures(self) -> JournalFigures:
        written = self._writer.figures
        self._figures.retries, self._figures.bytes = written.retries, written.bytes
        return self._figures

    @property
    def size(self) -> int:
        """Bytes that a recovery would read."""
        return self._snapshot_bytes + self._bytes

    @property
    def has_room(self) -> bool:
        """False while it cannot be written: grants must be refused."""
        if self._local is not None:
            return self._local.has_room
        since_s = self._since_s
        return since_s is None or self._now_s() - since_s < STALLED_S

    # --- recovery

    def recover(self) -> tuple[Entry, ...]:
        """Read all entries, in order, and prepare to append. Callable from any thread.

        Raises INTERNAL when it is damaged or only another version can read it.
        """
        reader = self.reader()
        entries = self.continue_behind(reader, self._writer.repeated(reader.begin))
        torn = 0 if self._local is None else self._local.torn_bytes
        for count, what in ((reader.dropped, "pieces"), (torn, "bytes")):
            if count:
                text = "%d %s of a torn last entry are dropped; it was never answered"
                logger.warning(text, count, what, extra={"event": "torn_tail"})
        return entries

    def reader(self) -> LogReader:
        """A position before the log's beginning; to be used until `continue_behind` only."""
        return LogReader(self._log, self.name)

    def continue_behind(
        self, reader: LogReader, lines: Sequence[LogLine], decoder: Entries | None = None
    ) -> tuple[Entry, ...]:
        """Prepare to append behind a position, and decode what was read up to there.

        A standby applies lines as they come; it passes none, and its decoder. The first append
        begins the take-over: it fails with LogSuperseded when another run was faster. Raises
        LogDamage when items are missing before others: an append would hide those.
        """
        self._writer.repeated(reader.confirm_end)
        decoder = decoder or Entries(self.name, reader.wrote)
        entries = decoder.all_of(line.group for line in lines)
        self._has_newer = decoder.compaction_loses
        warn_ignored(logger, decoder.ignored)
        self._seq, self._fences = reader.seq, [*reader.fences, reader.seq + 1]
        self._snapshot_seq, self._snapshot_bytes = reader.snapshot_seq, reader.snapshot_bytes
        self._bytes = reader.bytes
        self._exclude_others()
        if reader.last is None:
            header, self._last = encode_header(BUILD)
            self._put_all(self._items([header]))
        else:
            self._last = reader.last
        return entries

    # --- appending

    def append(self, changes: Sequence[Entry]) -> Awaitable[None]:
        """`corekit.aio.driver.Journal`; its error ends the daemon.

        Raises LogSuperseded when another run continues the log; the log's last error otherwise.
        Without changes a line without entries is put: a sign of life.
        """
        self._figures.entries += len(changes)
        lines = self._lines([encode_entry(entry) for entry in changes])
        items = self._items(lines)
        self._bytes += sum(map(len, lines))
        is_compacting = self._compacting is not None  # then a put may wait for the new file
        is_due = self._is_compaction_due()
        if self._is_prompt and not is_compacting and not is_due:
            with self._speed.measured():
                self._put_all(items)
            return DURABLE
        written = self._thread.submit(self._put_all, items)
        if is_due:
            assert self.snapshot is not None, "it is due only then"
            self._compact_from = (self._seq, self._bytes)
            arguments = (self.snapshot(), self._last, self._seq, list(self._fences), written)
            self._compacting = self._compactor.submit(self._compact, *arguments)
        return self._durable(written)

    @property
    def _is_prompt(self) -> bool:
        return self._local is not None and self._speed.is_prompt

    async def _durable(self, written: Future[None]) -> None:
        if self._local is not None:  # a slow disk is waited for
            await asyncio.wrap_future(written)
            return
        limit_s = self.settings.retry.within_s + 2 * self.settings.call_s
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.shield(asyncio.wrap_future(written))
        except TimeoutError:
            self._log.interrupt()
            text = f"{self.name} has not answered for {limit_s:g} s; nothing more can be granted"
            raise AppError(ErrorCode.TIMEOUT, text) from None

    def _lines(self, entries: Sequence[bytes]) -> list[bytes]:
        """Chained lines, each of as many entries as fit into an item; one at least."""
        most = self._log.limits.item_bytes_max - _LINE_OVERHEAD
        if sum(map(len, entries)) + len(entries) <= most:
            return [self._line(entries)]
        lines: list[bytes] = []
        begin = length = 0
        for number, entry in enumerate(entries):
            if length and length + len(entry) > most:
                lines.append(self._line(entries[begin:number]))
                begin, length = number, 0
            length += len(entry) + 1
        lines.append(self._line(entries[begin:]))
        return lines

    def _line(self, entries: Sequence[bytes]) -> bytes:
        line, self._last = encode_group(body_of(entries), self._last)
        return line

    def _items(self, lines: Sequence[bytes]) -> list[tuple[int, bytes]]:
        items: list[tuple[int, bytes]] = []
        for line in lines:
            for item in encode_items(line, self.settings.run, self._log.limits.item_bytes_max):
                self._seq += 1
                items.append((self._seq, item))
        return items

    def _put_all(self, items: Sequence[tuple[int, bytes]]) -> None:
        started_s = self._since_s = self._now_s()
        try:
            for seq, item in items:
                self._writer.put(seq, item)
        finally:
            self._since_s = None
        took_s = self._now_s() - started_s
        self._figures.syncs += 1
        self._figures.sync_s += took_s

    def _exclude_others(self) -> None:
        """In the state folder, whose lock this daemon has, nothing else writes."""
        address, state = self.settings.address, self.settings.state
        if self._local is not None and address == file_address(state):
            self._local.be_alone()

    # --- compaction

    def _is_compaction_due(self) -> bool:
        if self._compacting is not None:
            if not self._compacting.done():
                return False
            self._settle(self._compacting)
        items = self._seq - self._snapshot_seq
        bytes_max = max(self.compact_bytes_min, COMPACT_RATIO * self._snapshot_bytes)
        is_remote = self._local is None
        is_old = is_remote and self._now_s() - self._snapshot_s > SNAPSHOT_EVERY_S
        is_due = (
            self._bytes > bytes_max
            or items > self._log.limits.snapshot_after
            # never more bytes of snapshots than of lines
            or (is_old and items > SNAPSHOT_ITEMS_MIN and self._bytes > self._snapshot_bytes)
        )
        return self.snapshot is not None and is_due and self._bytes > self._compact_after_bytes

    def _settle(self, compacting: Future[int | None]) -> None:
        """Note a compaction that has ended."""
        self._compacting = None
        length = compacting.result()
        if length is None:  # the next try comes after as much again as a chunk of the file
            self._compact_after_bytes = self._bytes + self._log.limits.snapshot_bytes // 2
            return
        self._snapshot_seq, before = self._compact_from
        self._snapshot_bytes, self._bytes = length, self._bytes - before
        self._compact_after_bytes = 0
        self._snapshot_s = self._now_s()
        self._figures.compactions += 1

    def _compact(
        self,
        parts: Iterable[Part],
        mark: Mark,
        seq: int,
        fences: list[int],
        written: Future[None],
    ) -> int | None:
        """Store the snapshot of a line, and trim what precedes the one before; its length."""
        if written.exception() is not None:  # it ends the daemon
            return None
        data = with_fences(fences, encode_snapshot([encode_parts(parts)], mark))
        try:
            if self._local is None or self._has_newer:
                with closing(self._open()) as log:
                    self._keep_newer(log)
                    if self._local is None:
                        log.put_snapshot(seq, data)
                        log.trim(self._snapshot_seq, fences)
            if self._local is not None:
                # Another opening would scan the whole file, which holds up the event loop.
                self._thread.submit(self._local.write_snapshot(seq, data)).result()
        except (AppError, OSError) as error:
            why = error.message if isinstance(error, AppError) else error.strerror
            logger.error("the journal was not compacted: %s", why, extra={"event": "no_snapshot"})
            return None
        return len(data)

    def _keep_newer(self, log: Log) -> None:
        """Keep the contents where a newer version finds what this one cannot carry on."""
        if not self._has_newer:
            return
        kept = keep_copy(log, self.settings.state, "newer")
        self._has_newer = False
        text = "the journal that a newer version wrote is kept as %s"
        logger.warning(text, kept, extra={"event": "newer_version"})

    def upkeep(self) -> None:
        """Housekeeping, to be called about once a second."""
        if self._local is not None:
            self._thread.submit(self._local.upkeep)

    def close(self) -> None:
        """Wait for the last append; idempotent."""
        self._compactor.shutdown(wait=True)  # its end needs the other thread
        self._thread.shutdown(wait=True)
        self._processor_wait.close()
        self._log.close()
