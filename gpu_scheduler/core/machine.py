"""The scheduler's core: one event in; the entry for the journal and the actions out.

Theory of operation. The state (state.py) has a durable part that changes only by parts of entries
(changes.py, apply.py); life and replay run the same code, so recovery never asks a policy again.
One event is one `Transaction`: its handler emits parts and actions, then, if capacity may have come free,
the queue is served (dispatch.py), so that a release grants to the next waiter in the same decision.
All parts of a tx are one entry: a lease's end, its record's change and the next grant are durable
together or not at all.

    requests    dispatch.py  admitted → granted | queued → granted … | withdrawn
    leases      leases.py    RESERVED → ACTIVE → ENDING → ENDED(reason)
    records     records.py   compare-and-set notes of the orchestrators about jobs
    sessions    sessions.py  alive or gone          hosts   hosts.py   UP → STALE → LOST

What fits where: fits.py alone. Who goes next: policies/. How much one may have: limits.py. A
grant's fence is its journal position.
Time is `event.at_s`; deadlines are armed in state.timers, and `WakeAt` asks for a `Ticked` at the
earliest. A scheduler that was itself stopped (its tick comes far too late) blames nobody else for
check_silence: every clock of check_silence starts anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, assert_never, get_args

from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, IdSource, JobId, LeaseId, SessionId
from corekit.machine import Decision
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission import limits
from gpu_scheduler.core.durable import changes as to
from gpu_scheduler.core.durable import parameters, recovery
from gpu_scheduler.core.durable.apply import apply_part
from gpu_scheduler.core.durable.snapshot import parts, snapshot
from gpu_scheduler.core.inventory import health, hosts
from gpu_scheduler.core.leases import leases
from gpu_scheduler.core.queue import dispatch
from gpu_scheduler.core.records import records, sessions
from gpu_scheduler.core.state import State
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.core.views import views
from gpu_scheduler.parameters import Parameters


class SchedulerMachine:
    """`corekit.machine.Machine` of events, entries and actions.

    A daemon classes one, applies every entry of its journal, then handles `EpochBegan` first.
    """

    def __init__(self, budget: Budget, ids: IdSource, configured: Parameters | None = None) -> None:
        self.state = State(configured=configured or Parameters())
        self._budget = budget
        self._ids = ids
        self._wake_s: float | None = None  #: the `Ticked` that is under way

    def handle(self, event: on.Event) -> Decision[to.Entry, do.Action]:
        """Decide; the state has changed when this returns."""
        tx = Transaction(
            state=self.state,
            budget=self._budget,
            ids=self._ids,
            at_s=event.at_s,
            wall_s=event.wall_s,
        )
        self._route(tx, event)
        if tx.capacity_freed:
            dispatch.serve(tx)
        self._ask_for_tick(tx)
        changes = (to.Entry(parts=tuple(tx.parts)),) if tx.parts else ()
        return Decision(changes, tuple(tx.actions))

    def apply(self, change: to.Entry) -> None:
        """Replay one journalled entry."""
        for part in change.parts:
            apply_part(self.state, part)

    def snapshot(self) -> tuple[to.Entry, ...]:
        """Entries that rebuild the durable state; a compacted journal begins with them."""
        return snapshot(self.state)

    def parts(self) -> Iterator[to.Part]:
        """The parts of `snapshot`; another thread may take them while the machine goes on."""
        return parts(self.state)

    # ------------------------------------------------------------------ routing

    def _route(self, tx: Transaction, event: on.Event) -> None:
        if (prove := _PROOFS.get(type(event))) is not None:
            prove(tx, event)
        if type(event) is on.Ticked:
            self._ticked(tx)
        elif not limits.rate_limited(tx, event):
            HANDLERS[type(event)](tx, event)

    # ------------------------------------------------------------------ time

    def _ticked(self, tx: Transaction) -> None:
        self._wake_s = None
        timers = self.state.timers
        next_s = timers.next_s()
        if next_s is not None and tx.at_s - next_s > self._budget.client_beat_s:
            recovery.after_stall(tx)
        while (key := timers.pop_due(tx.at_s)) is not None:
            _timer_fired(tx, *key)

    def _ask_for_tick(self, tx: Transaction) -> None:
        next_s = self.state.timers.next_s()
        if next_s is not None and (self._wake_s is None or next_s < self._wake_s):
            self._wake_s = next_s
            tx.act(do.WakeAt(at_s=next_s))


def _timer_fired(tx: Transaction, kind: TimerKind, name: str) -> None:
    match kind:
        case TimerKind.HOST:
            hosts.check_silence(tx, HostId(name))
        case TimerKind.SESSION:
            sessions.check_silence(tx, SessionId(name))
        case TimerKind.LEASE:
            leases.deadline_passed(tx, LeaseId(name))
        case TimerKind.WAIT:
            dispatch.wait_timed_out(tx, name)
        case TimerKind.DEVICE:
            health.clean_long_enough(tx, DeviceId(name))
        case TimerKind.RECORD:
            records.forget(tx, JobId(name))
        case _:
            assert_never(kind)


def _begin(tx: Transaction, event: on.EpochBegan) -> None:
    recovery.begin(tx, event.run, event.build)


def _done(tx: Transaction, event: on.SessionBeat | on.CutTold) -> None:
    """That it came is all there is to it."""
    tx.reply(event.reply_to, do.Done())


def _session_lives(tx: Transaction, event: on.Asked) -> None:
    sessions.mark_alive(tx, event.session)


def _host_lives(tx: Transaction, event: on.LeaseSessionTold | on.DoorTold | on.CutTold) -> None:
    host = tx.state.inventory.hosts.get(event.host)
    if host is not None:
        hosts.mark_alive(tx, host)


#: What each event is decided by; `Ticked` alone is the machine's own.
HANDLERS: Mapping[type[on.Event], Callable[[Transaction, Any], None]] = {
    on.EpochBegan: _begin,
    on.CapacityDeclared: hosts.declared,
    on.RoomChanged: parameters.room_changed,
    on.HostHello: hosts.hello,
    on.InstallsAsked: hosts.installs,
    on.HostLeft: hosts.left,
    on.HostReported: hosts.reported,
    on.LeaseSessionTold: leases.session_told,
    on.DoorTold: leases.door_told,
    on.CutTold: _done,
    on.SessionHello: sessions.hello,
    on.SessionBeat: _done,
    on.WatchAsked: sessions.watch,
    on.ReserveAsked: sessions.reserve,
    on.WithdrawAsked: sessions.withdraw,
    on.SetAsked: parameters.set_parameter,
    on.DrainAsked: hosts.drain,
    on.ForgetAsked: hosts.forget,
    on.RenewAsked: leases.renew,
    on.StagedTold: leases.staged,
    on.ReleaseAsked: leases.release,
    on.ResizeAsked: leases.resize,
    on.TransferAsked: leases.transfer,
    on.AttemptAsked: records.attempt,
    on.AdoptAsked: records.adopt,
    on.HandleGiven: records.handle_given,
    on.HandBackAsked: records.hand_back,
    on.AttemptFailed: records.fail_attempt,
    on.FinishAsked: records.finish,
    on.ReopenAsked: records.reopen,
    **dict.fromkeys(get_args(views.Question), views.answer),
}

#: Whose life an event proves before it is decided.
_PROOFS: Mapping[type[on.Event], Callable[[Transaction, Any], None]] = {
    **{event: _session_lives for event in HANDLERS if issubclass(event, on.Asked)},
    on.LeaseSessionTold: _host_lives,
    on.DoorTold: _host_lives,
    on.CutTold: _host_lives,
}
