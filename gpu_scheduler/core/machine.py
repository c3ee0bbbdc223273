"""The scheduler's core: one event in; the entry for the journal and the actions out.

Theory of operation. The state (state/) has a durable part that changes only by parts of entries
(changes.py, replay/); live operation and replay run the same code, so recovery never consults a
policy again. One event is one `Transaction`: its handler emits parts and actions, then, if capacity
may have become free, the queue is served (dispatch.py), so that a release grants to the next
waiting request in the same decision.
All parts of a transaction are one entry: the end of a lease, the change of its record and the next
grant are durable together or not at all.

    requests    dispatch.py  admitted → granted | queued → granted … | withdrawn
    leases      leases.py    RESERVED → ACTIVE → ENDING → ENDED(reason)
    records     records.py   compare-and-set notes of the orchestrators about jobs
    sessions    sessions.py  alive or gone          hosts   hosts.py   UP → STALE → LOST

devices.py alone decides which device fits a request, policies/ which request is served next, and
limits.py how much a key or tenant may have. The fence of a grant is its journal position.
Time is `event.at_s`; deadlines are armed in state.timers, and `WakeAt` requests a `Ticked` for the
earliest. When the scheduler itself was stalled (its tick comes far too late), silence during the
stall proves nothing: every silence timer is restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import IdSource
from corekit.machine import Decision
from corekit.values import Value
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission import limits
from gpu_scheduler.core.handlers import (
    departures,
    floors,
    health,
    hosts,
    parameters,
    promises,
    records,
    recovery,
    sessions,
)
from gpu_scheduler.core.handlers import leases as lease_handlers
from gpu_scheduler.core.leases import leases
from gpu_scheduler.core.policies import fifo
from gpu_scheduler.core.queue import advance, dispatch, settlement
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.queue.policy import Policy
from gpu_scheduler.core.replay.apply import apply_part
from gpu_scheduler.core.replay.snapshot import parts, snapshot
from gpu_scheduler.core.state.state import State
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.core.views import demand, views, workloads
from gpu_scheduler.parameters import DEFAULT_POLICY, Parameters
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops

#: The policies of a machine that only replays a journal.
_ONLY_FIFO: Mapping[str, Policy] = {DEFAULT_POLICY: fifo.POLICY}


class SchedulerMachine:
    """`corekit.machine.Machine` of events, entries and actions.

    A daemon makes one, applies every entry of its journal, then handles `EpochBegan` first.
    """

    def __init__(
        self,
        budget: Budget,
        ids: IdSource,
        configured: Parameters | None = None,
        policies: Mapping[str, Policy] = _ONLY_FIFO,
    ) -> None:
        self.state = State(configured=configured or Parameters(), installed=policies)
        self._policies = policies
        self._budget = budget
        self._ids = ids
        self._wake_s: float | None = None  #: time of the requested `Ticked`

    def handle(self, event: on.Event) -> Decision[to.Entry, do.Action]:
        """Handle one event; the state is updated when this returns."""
        tx = QueueTransaction(
            policies=self._policies,
            policy=self._policies[self.state.parameters.policy],
            state=self.state,
            budget=self._budget,
            ids=self._ids,
            at_s=event.at_s,
            wall_s=event.wall_s,
        )
        self._route(tx, event)
        if tx.policy.promises:
            settlement.settle(tx)
        if tx.capacity_freed:
            advance.book(tx)
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
        """The parts of `snapshot`; another thread may consume them while the machine continues."""
        return parts(self.state)

    # ------------------------------------------------------------------ routing

    def _route(self, tx: QueueTransaction, event: on.Event) -> None:
        if isinstance(event, on.Asked):
            sessions.mark_alive(tx, event.session)
            _answer(tx, event, OPS[type(event.op)])
        elif isinstance(event, on.HostAsked):
            _host_lives(tx, event)
            _answer(tx, event, HOST_OPS[type(event.op)])
        elif isinstance(event, on.Ticked):
            self._ticked(tx)
        else:
            EVENTS[type(event)](tx, event)

    # ------------------------------------------------------------------ time

    def _ticked(self, tx: QueueTransaction) -> None:
        self._wake_s = None
        timers = self.state.timers
        next_s = timers.next_s()
        if next_s is not None and tx.at_s - next_s > self._budget.client_beat_s:
            recovery.after_stall(tx)
        while (key := timers.pop_due(tx.at_s)) is not None:
            kind, name = key
            TIMERS[kind](tx, name)

    def _ask_for_tick(self, tx: QueueTransaction) -> None:
        next_s = self.state.timers.next_s()
        if next_s is not None and (self._wake_s is None or next_s < self._wake_s):
            self._wake_s = next_s
            tx.actions.append(do.WakeAt(at_s=next_s))


#: A handler returns the answer to its op; None when it has replied itself. It raises an `AppError`
#: to refuse the op, before it has changed anything.
Handler = Callable[[QueueTransaction, Any], Value | None]


def _answer(tx: QueueTransaction, event: on.Asked[Any] | on.HostAsked[Any], op: Handler) -> None:
    """Reply with the answer of the handler, or with its refusal."""
    changed = len(tx.parts)
    try:
        if isinstance(event, on.Asked):
            limits.check_rate(tx.state, event.session, event.op, event.at_s)
        answer = op(tx, event)
    except AppError as error:
        assert len(tx.parts) == changed, f"{type(event.op).__name__} was refused half done"
        tx.actions.append(
            do.ReplyError(
                reply_to=event.reply_to,
                code=error.code,
                message=error.message,
                details=error.details,
            )
        )
        return
    if answer is not None:
        tx.reply(event.reply_to, answer)


def _pause_over(tx: QueueTransaction, name: str) -> None:  # noqa: ARG001 - there is one pause
    tx.capacity_freed = True  # `serve` asks the policy again


def _done(
    tx: QueueTransaction,  # noqa: ARG001 - as of all ops
    event: on.HostAsked[host_ops.Cut],  # noqa: ARG001
) -> answers.Done:
    """Answer only: the arrival of the op already proved that its sender is alive."""
    return answers.Done()


def _host_lives(tx: QueueTransaction, event: on.HostAsked[host_ops.HostOp]) -> None:
    """Mark the host alive; `hello`, `report` and `installs` do so only after validation."""
    host = tx.state.inventory.hosts.get(event.host)
    if host is not None and isinstance(event.op, _PROOFS_OF_LIFE):
        hosts.mark_alive(tx, host)


_PROOFS_OF_LIFE = (
    host_ops.SessionChange,
    host_ops.DoorOpened,
    host_ops.Cut,
    host_ops.Draining,
)

#: Handler of each timer, by the name that it was armed with.
TIMERS: Mapping[TimerKind, Callable[[QueueTransaction, Any], None]] = {
    TimerKind.HOST: hosts.check_silence,
    TimerKind.DRAIN: departures.limit_near,
    TimerKind.FORGET: departures.forget_due,
    TimerKind.SESSION: sessions.check_silence,
    TimerKind.LEASE: leases.deadline_passed,
    TimerKind.WAIT: dispatch.wait_timed_out,
    TimerKind.DEVICE: health.clean_long_enough,
    TimerKind.POLICY: _pause_over,
    TimerKind.RECORD: records.forget,
    TimerKind.ADVANCE: advance.ends_soon,
    TimerKind.FLOORS: floors.check,
}

#: Handler of each event without an op; the machine handles `Ticked` itself.
EVENTS: Mapping[type[on.Event], Callable[[QueueTransaction, Any], None]] = {
    on.EpochBegan: recovery.begin,
    on.CapacityDeclared: hosts.declared,
    on.RoomChanged: parameters.room_changed,
    on.HostLeft: hosts.left,
}

#: Handler of each op of a host.
HOST_OPS: Mapping[type[host_ops.HostOp], Handler] = {
    host_ops.HostHello: hosts.hello,
    host_ops.InstallsAsked: hosts.installs,
    host_ops.Report: hosts.reported,
    host_ops.SessionChange: lease_handlers.session_changed,
    host_ops.DoorOpened: lease_handlers.door_opened,
    host_ops.Cut: _done,
    host_ops.Draining: departures.draining,
}

#: Handler of each op of a requester session.
OPS: Mapping[type[ops.Op[Value]], Handler] = {
    ops.Hello: sessions.hello,
    ops.Beat: sessions.beat,
    ops.Watch: sessions.watch,
    ops.Reserve: sessions.reserve,
    ops.Withdraw: sessions.withdraw,
    ops.Admit: promises.admit,
    ops.Waive: promises.waive,
    ops.SetParameter: parameters.set_parameter,
    ops.Drain: departures.drain,
    ops.Undrain: departures.drain,
    ops.Forget: departures.forget,
    ops.Renew: lease_handlers.renew,
    ops.StagedOp: records.staged,
    ops.StartedOp: records.started,
    ops.Release: lease_handlers.release,
    ops.Resize: lease_handlers.resize,
    ops.Transfer: lease_handlers.transfer,
    ops.Attempt: records.attempt,
    ops.Adopt: records.adopt,
    ops.Handle: records.handle_given,
    ops.HandBack: records.hand_back,
    ops.FailAttempt: records.fail_attempt,
    ops.Finish: records.finish,
    ops.Reopen: records.reopen,
    ops.Orphans: views.orphans,
    ops.RecordOf: views.record,
    ops.Records: views.records,
    ops.Explain: views.explain,
    ops.Inventory: views.inventory,
    ops.Leases: views.leases,
    ops.Queue: views.queue,
    ops.Workloads: workloads.workloads,
    ops.Demand: demand.demand,
    ops.ReportFleet: demand.reported,
    ops.KeepWarm: floors.keep_warm,
    ops.ParametersOf: parameters.parameters,
}
