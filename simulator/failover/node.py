"""One ssgmd: standby, then leader, then standby again; one step at a time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import IdSource
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal.format import (
    Mark,
    body_of,
    encode_group,
    encode_header,
    encode_snapshot,
    split_group,
)
from gpu_scheduler.daemon.journal.reader import LogLine, LogReader, LogTrimmed, with_fences
from gpu_scheduler.daemon.log.item import RUN_LENGTH, encode_items
from gpu_scheduler.daemon.log.writer import LogSuperseded, LogWriter, RetryLimits
from gpu_scheduler.daemon.standby.silence import Silence
from gpu_scheduler.protocol.changes import (
    Entry,
    EpochEnded,
    decode_entry,
    encode_entry,
    encode_parts,
)
from simulator.failover.memory_log import ITEM_BYTES_MAX, MemoryLog
from simulator.faults.checkers import Violation
from simulator.invariants import check

NAME = "memory"
#: Puts are repeated at once, and long enough for every draw.
RETRY = RetryLimits(within_s=1e9, first_s=1e-6, most_s=1e-6)


@dataclass
class Compaction:
    """A snapshot of the state after some group; then the log is trimmed up to the one before."""

    seq: int  #: of the group's last item
    snapshot: bytes
    trim_to: int
    fences: list[int]
    is_stored: bool = False


@dataclass
class Group:
    """Decisions that become durable together."""

    items: list[bytes]
    actions: list[do.Action]
    compaction: Compaction | None = None  #: once it is durable


@dataclass
class Node:
    """A scheduler over the shared log. `step` does one thing that a real one could do next."""

    name: str
    log: MemoryLog
    budget: Budget
    rng: random.Random
    act: Callable[[Node, do.Action], None]
    now_s: float = 0.0
    starts: int = 0
    leads: bool = False
    overtaken: int = 0  #: leaderships that ended at a lost item
    compactions: int = 0
    trimmed: int = 0  #: times that its next item was removed behind a newer snapshot
    connection: int = 0  #: number of the run: its connections break with it
    machine: SchedulerMachine = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start, or start again: nothing in memory is left."""
        self.starts += 1
        self.connection += 1
        self.leads = False
        self.run = f"{self.starts:08x}{self.rng.getrandbits(32):08x}"
        assert len(self.run) == RUN_LENGTH
        ids = IdSource(f"{self.name}/{self.run}")
        self.machine = SchedulerMachine(self.budget, ids)
        self._reader = LogReader(self.log, NAME)
        self._writer = LogWriter(
            self.log, NAME, RETRY, sleep=lambda _: None, now_s=lambda: self.now_s
        )
        self._silence = Silence(self.budget.takeover_s, self.now_s)
        self._groups: deque[Group] = deque()
        self._actions: deque[do.Action] = deque()
        self._seq = 0
        self._last = Mark(0, b"")
        self._fences: list[int] = []
        self._snapshot_seq = 0
        self._compaction: Compaction | None = None
        self._idle_since_s = self.now_s

    def step(self) -> None:
        """Follow the log, or write and act as its leader."""
        if not self.leads:
            self._follow()
        elif self._compaction is not None and self.rng.random() < 0.3:
            self._compact(self._compaction)
        elif self._groups and (not self._actions or self.rng.random() < 0.5):
            self._put()
        elif self._actions:
            self.act(self, self._actions.popleft())
        elif self.now_s - self._idle_since_s >= self.budget.leader_beat_s:
            self._append((), ())

    def decide(self, event: on.Event) -> None:
        """Hand an event to the leader's machine; its effects wait for the log."""
        assert self.leads, "events go to a leader, or to one that believes it"
        decision = self.machine.handle(event)
        self._checked()
        if decision.changes:
            self._append(decision.changes, decision.actions)
        elif self._groups:  # an action never overtakes the changes before it
            self._groups[-1].actions.extend(decision.actions)
        else:
            self._actions.extend(decision.actions)

    def take_over_early(self) -> None:
        """Take the leader for dead although it is not: a clock that jumps."""
        if not self.leads and self._reader.seq:
            self._take_over()

    def hand_over(self) -> None:
        """SIGTERM: write the end of the epoch after everything that is under way, and end."""
        try:
            while self._groups:
                self._put_all(self._groups.popleft())
            if self.leads:
                ended = Entry(parts=(EpochEnded(epoch=self.machine.state.epoch),))
                self._append((ended,), ())
                self._put_all(self._groups.popleft())
        except LogSuperseded:
            pass  # another one leads already
        self.begin()

    # --- as a standby

    def _follow(self) -> None:
        began_s = self.now_s
        try:
            lines = self._reader.begin() if self._reader.seq == 0 else self._reader.poll()
        except LogTrimmed:
            self.trimmed += 1
            self.begin()
            return
        for line in lines:
            self._apply(line)
        due = self._silence.read(began_s, self.now_s, news=bool(lines))
        if due or self.machine.state.epoch_ended or self._reader.seq == 0:
            self._take_over()

    def _apply(self, line: LogLine) -> None:
        for text in split_group(line.group):
            self.machine.apply(decode_entry(bytes(text)))
        self._checked()

    def _take_over(self) -> None:
        self.leads = True
        self._seq, self._snapshot_seq = self._reader.seq, self._reader.snapshot_seq
        self._fences = [*self._reader.fences, self._seq + 1]
        if self._reader.last is None:
            header, self._last = encode_header("sim")
            self._groups.append(Group(encode_items(header, self.run, ITEM_BYTES_MAX), []))
        else:
            self._last = self._reader.last
        self.decide(on.EpochBegan(run=self.run, at_s=self.now_s, wall_s=self.now_s))

    # --- as the leader

    def _append(self, changes: Sequence[Entry], actions: Sequence[do.Action]) -> None:
        body = body_of([encode_entry(entry) for entry in changes])
        line, self._last = encode_group(body, self._last)
        group = Group(encode_items(line, self.run, ITEM_BYTES_MAX), [*actions])
        self._groups.append(group)
        seq = self._seq + sum(len(one.items) for one in self._groups)
        if seq - self._snapshot_seq > self.log.limits.snapshot_after:
            snapshot = encode_snapshot([encode_parts(self.machine.parts())], self._last)
            data = with_fences(self._fences, snapshot)
            group.compaction = Compaction(seq, data, self._snapshot_seq, [*self._fences])
            self._snapshot_seq = seq

    def _put(self) -> None:
        group = self._groups.popleft()
        try:
            self._put_all(group)
        except LogSuperseded:
            self.overtaken += 1
            self.begin()

    def _put_all(self, group: Group) -> None:
        for item in group.items:
            self._seq += 1
            self._writer.put(self._seq, item)
        self._compaction = group.compaction or self._compaction
        self._actions.extend(group.actions)
        self._idle_since_s = self.now_s

    def _compact(self, compaction: Compaction) -> None:
        """Store the snapshot, or trim; both may be late, and done again after a lost answer."""
        try:
            if compaction.is_stored:
                self.log.trim(compaction.trim_to, compaction.fences)
                self.compactions += 1
                self._compaction = None
            else:
                self.log.put_snapshot(compaction.seq, compaction.snapshot)
                compaction.is_stored = True
        except AppError as error:
            if not error.retryable:
                raise

    def _checked(self) -> None:
        if problems := check(self.machine.state):
            raise Violation(f"{self.name}: {problems}")
