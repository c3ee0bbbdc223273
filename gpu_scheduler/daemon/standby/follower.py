"""A standby's reading of the log: every line is applied to the standby's own machine as it comes.

The lag is at most the time since the last read that reached the log's end (`standby_poll_s`, and
the duration of a read). When the leader is silent, or has ended its epoch, the journal continues
behind the last line, and the first append decides (`daemon/log/port.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from corekit.aio.clock import Clock
from corekit.aio.newer import warn_ignored
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal.entries import Entries
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.journal.reader import LogLine
from gpu_scheduler.daemon.journal.repair import apply_all
from gpu_scheduler.daemon.standby.silence import Silence

logger = logging.getLogger(__name__)


class StandbyStatus(Value):
    """The state of a standby, in its answers."""

    leader: str  #: socket endpoint of the leader; "" = unknown
    leader_http: str
    epoch: int  #: of the leader
    lag_s: float  #: the applied state is at most this old
    item: int  #: newest item of the log that was read
    silent_s: float = 0.0  #: since the leader's last item, or since the log could not be read


class LogFollower:
    """Reads until a take-over is due."""

    def __init__(
        self,
        journal: Journal,
        machine: SchedulerMachine,
        budget: Budget,
        clock: Clock,
        fingerprint: str,
    ) -> None:
        self._journal = journal
        self._machine = machine
        self._budget = budget
        self._clock = clock
        self._fingerprint = fingerprint
        self._reader = journal.reader()
        self._entries: Entries | None = None
        self._current_s = clock.monotonic_s()  # when the end of the log was last reached
        self._silence = Silence(budget.takeover_s, self._current_s)

    @property
    def status(self) -> StandbyStatus:
        state, now_s = self._machine.state, self._clock.monotonic_s()
        return StandbyStatus(
            leader="" if state.epoch_ended else state.leader.socket,
            leader_http="" if state.epoch_ended else state.leader.http,
            epoch=state.epoch,
            lag_s=round(now_s - self._current_s, 3),
            item=self._reader.seq,
            silent_s=round(self._silence.silent_s(now_s), 3),
        )

    async def follow(self) -> None:
        """Read until the leader is silent for `takeover_s`, or has ended its epoch.

        Raises LogTrimmed when the log was shortened behind this reader, INVALID for another master
        key than the leader's, INTERNAL for a damaged log.
        """
        silence = self._silence = Silence(self._budget.takeover_s, self._clock.monotonic_s())
        read: Callable[[], list[LogLine]] = self._reader.begin
        while True:
            began_s = self._clock.monotonic_s()
            try:
                lines = await asyncio.to_thread(read)
            except AppError as error:
                if not error.retryable:
                    raise
                text = "the log cannot be read: %s"
                logger.warning(text, error.message, extra={"event": "standby_blind"})
                silence.unknown(self._clock.monotonic_s())
            else:
                read = self._reader.poll
                self._current_s = self._clock.monotonic_s()
                await self._apply(lines)
                due = silence.read(began_s, self._current_s, news=bool(lines))
                if due or self._machine.state.epoch_ended or self._reader.seq == 0:
                    return
            due_in_s = silence.due_in_s(self._clock.monotonic_s())
            await asyncio.sleep(min(self._budget.standby_poll_s, due_in_s))

    async def _apply(self, lines: list[LogLine]) -> None:
        if not lines:
            return
        if self._entries is None:
            self._entries = Entries(self._journal.name, self._reader.wrote)
        entries, known = self._entries, len(self._entries.ignored)
        for number, line in enumerate(lines):
            apply_all(self._machine, entries.of(line.group), self._journal.name)
            if number % 100 == 99:
                await asyncio.sleep(0)
        warn_ignored(logger, dict.fromkeys(list(entries.ignored)[known:]))
        check_master_key(self._machine, self._fingerprint)

    def take_over(self) -> None:
        """Prepare the journal to append behind the last line. Blocks. Raises LogSuperseded."""
        self._journal.continue_behind(self._reader, (), self._entries)


def check_master_key(machine: SchedulerMachine, fingerprint: str) -> None:
    """Check that this ssgmd has the master key of the journal's last epoch. Raises INVALID."""
    if machine.state.master_key in ("", fingerprint):
        return
    text = "the master key differs from that of the ssgmd that wrote the log: the secrets of its "
    text += "leases would not be accepted; give both the same one (--master-key)"
    raise invalid(text)


def standby_error(status: StandbyStatus) -> AppError:
    """The answer of a standby to every request: where the leader is."""
    where = f"the leader is {status.leader}" if status.leader else "the leader is not known"
    text = f"this ssgmd is a standby; {where}"
    details: dict[str, object] = {
        "standby": True,
        "epoch": status.epoch,
        "lag_s": status.lag_s,
        "item": status.item,
        "silent_s": status.silent_s,
    }
    if status.leader:
        details |= {"leader": status.leader, "leader_http": status.leader_http}
    return AppError(ErrorCode.UNAVAILABLE, text, **details)
