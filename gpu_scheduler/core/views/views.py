"""Answers that only read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import dropwhile, islice
from typing import TypeVar, assert_never

from corekit.errors import ErrorCode
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission.quotas import allowed
from gpu_scheduler.core.durable.changes import Waiting
from gpu_scheduler.core.durable.parameters import parameters
from gpu_scheduler.core.inventory.capacity import impossible
from gpu_scheduler.core.inventory.inventory import DeviceEntry, HostEntry
from gpu_scheduler.core.leases.expected import expected
from gpu_scheduler.core.placement.fits import COMPUTE_PCT_MAX
from gpu_scheduler.core.queue.dispatch import evaluate, explained, held_back
from gpu_scheduler.core.records.sessions import length_problem, requested_length_s
from gpu_scheduler.core.state import LeaseEntry, State
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.core.views.explain import wanted, with_verdicts
from gpu_scheduler.model import Explanation, LeaseLifetime, Record

T = TypeVar("T")

Question = (
    on.OrphansAsked
    | on.RecordAsked
    | on.RecordsAsked
    | on.ExplainAsked
    | on.InventoryAsked
    | on.LeasesAsked
    | on.QueueAsked
    | on.ParametersAsked
)


def answer(tx: Transaction, event: Question) -> None:
    state = tx.state
    match event:
        case on.OrphansAsked():
            known = (state.records[holder] for holder in state.orphans)
            theirs = (record for record in known if record.key not in event.foreign)
            records = tuple(islice(theirs, max(0, event.limit)))
            tx.reply(event.reply_to, do.RecordsAnswer(records=records))
        case on.RecordAsked():
            record = state.records.get(event.holder)
            tx.reply(event.reply_to, do.RecordAnswer(record=record))
        case on.RecordsAsked():
            tx.reply(event.reply_to, _page(state, event))
        case on.InventoryAsked():
            tx.reply(event.reply_to, _inventory(tx, event))
        case on.LeasesAsked():
            tx.reply(event.reply_to, _leases(tx, event))
        case on.QueueAsked():
            tx.reply(event.reply_to, _queue(state, event.limit))
        case on.ParametersAsked():
            tx.reply(event.reply_to, parameters(state))
        case on.ExplainAsked():
            _explain(tx, event)
        case _:
            assert_never(event)


def _page(state: State, event: on.RecordsAsked) -> do.RecordsAnswer:
    """Newest first. A cursor that is forgotten meanwhile gives an empty page."""
    newest = iter(reversed(state.records))
    if event.after is not None:
        newest = islice(dropwhile(lambda holder: holder != event.after, newest), 1, None)
    page = islice(newest, max(0, event.limit))
    return do.RecordsAnswer(records=tuple(state.records[holder] for holder in page))


def _inventory(tx: Transaction, event: on.InventoryAsked) -> do.InventoryAnswer:
    inventory, after, limit = tx.state.inventory, event.after, event.limit
    by_name = sorted(inventory.hosts.values(), key=lambda host: host.host)
    wanted = (host for host in by_name if after is None or host.host > after)
    page, more = _first(wanted, limit, lambda host: len(host.devices))
    declared = () if after is not None else inventory.declared[:limit]
    return do.InventoryAnswer(
        hosts=tuple(_host(tx, host) for host in page),
        declared=declared,
        declared_left_out=0 if after is not None else len(inventory.declared) - len(declared),
        more=more,
    )


def _leases(tx: Transaction, event: on.LeasesAsked) -> do.LeasesAnswer:
    entries = tx.state.leases.values()  # in the order of their fences
    wanted = (entry for entry in entries if entry.lease.fence > event.after)
    page, more = _first(wanted, event.limit, lambda entry: len(entry.lease.shares))
    return do.LeasesAnswer(
        leases=tuple(entry.lease for entry in page),
        ends_in_s={
            entry.lease.id: max(0.0, entry.deadline_s - tx.at_s)
            for entry in page
            if entry.deadline_s is not None
        },
        more=more,
    )


def _first(
    wanted: Iterable[T], limit: int | None, size: Callable[[T], int]
) -> tuple[list[T], bool]:
    """Those first that hold `limit` together, and at least one; whether there are more."""
    page: list[T] = []
    total = 0
    for one in wanted:
        total += size(one)
        if limit is not None and total > limit and page:
            return page, True
        page.append(one)
    return page, False


def _host(tx: Transaction, host: HostEntry) -> do.HostView:
    return do.HostView(
        host=host.host,
        state=host.shown_state,
        gateway=host.gateway,
        incarnation=host.incarnation,
        silent_s=max(0.0, tx.at_s - host.last_seen_s),
        devices=tuple(_device(entry) for entry in host.devices.values()),
        middlewares=host.middlewares,
    )


def _device(entry: DeviceEntry) -> do.DeviceView:
    return do.DeviceView(
        device=entry.device,
        memory_free_mib=entry.device.memory_mib - entry.allocated_mib,
        compute_free_pct=COMPUTE_PCT_MAX - entry.allocated_pct,
        leases=tuple(entry.shares),
        usage=entry.usage,
        drained=entry.drained,
    )


def _queue(state: State, limit: int | None) -> do.QueueAnswer:
    places = (
        (None if state.queue.is_ineligible(w.attempt) else i, w)
        for i, w in enumerate(state.queue.in_order(limit), 1)
    )
    queue = tuple(_queued(waiting, place) for place, waiting in places)
    return do.QueueAnswer(queue=queue, left_out=len(state.queue.entries) - len(queue))


def _queued(waiting: Waiting, position: int | None) -> do.QueuedView:
    return do.QueuedView(
        attempt=waiting.attempt,
        holder=waiting.holder,
        request=waiting.request,
        position=position,
        waiting_since_s=waiting.waiting_since_s,
        session=waiting.session,
    )


def _explain(tx: Transaction, event: on.ExplainAsked) -> None:
    """A queued, granted or refused request by attempt or holder, or any request as a dry run."""
    state, attempt = tx.state, event.attempt
    record = tx.record_of(event.holder)
    if record is not None:
        attempt = f"{record.holder}:{record.attempt}"
    lease = state.leases.get(state.lease_of.get(attempt or "", LeaseId("")))
    if lease is not None:
        tx.reply(event.reply_to, _granted(tx, lease))
        return
    waiting = state.queue.entries.get(attempt or "")
    newcomer = _newcomer(tx, event, state.refused.get(attempt or ""))
    if waiting is not None:
        told = _in_full(tx, waiting, do.Outcome.WAITING)
        answer = do.ExplainAnswer(outcome=do.Outcome.WAITING, explanation=told)
    elif newcomer is None:
        tx.refuse(event.reply_to, ErrorCode.NOT_FOUND, _nothing(event, record))
        return
    elif event.hold is LeaseLifetime.DEADLINE and (
        problem := length_problem(tx, event.hold, newcomer.lease_s)
    ):
        tx.refuse(event.reply_to, *problem)
        return
    else:
        judged = evaluate(tx, newcomer)
        outcome = judged.outcome
        told = _in_full(tx, newcomer, outcome)
        if judged.full is not None:
            told = replace(told, sentence=f"{told.sentence}; {judged.full.message}")
        answer = do.ExplainAnswer(outcome=outcome, explanation=told)
    tx.reply(event.reply_to, answer)


def _newcomer(tx: Transaction, event: on.ExplainAsked, refused: Waiting | None) -> Waiting | None:
    """The request of a dry run, or one that was refused, as if it came now."""
    request = event.request
    if request is None:
        return None if refused is None else replace(refused, attempt="", waiting_since_s=tx.wall_s)
    return Waiting(
        attempt="",
        holder=None,
        request=request,
        session=event.session,
        waiting_since_s=tx.wall_s,
        hold=event.hold,
        lease_s=requested_length_s(request, event.lease_s),
    )


def _nothing(event: on.ExplainAsked, record: Record | None) -> str:
    if record is not None:
        reason = f", {record.reason}" if record.reason else ""
        return f"{record.holder} asks for nothing now: it is {record.step}{reason}"
    name = event.attempt or event.holder
    return f"nothing waits, is granted or was refused lately as {name}; a dry run needs a request"


def _granted(tx: Transaction, entry: LeaseEntry) -> do.ExplainAnswer:
    told = explained(tx, entry.request)
    where = ", ".join(f"{share.host}/{share.index}" for share in entry.lease.shares)
    sentence = f"{wanted(entry.request)} is granted: lease {entry.lease.id} on {where}"
    told = replace(told, sentence=sentence, short=None)
    return do.ExplainAnswer(outcome=do.Outcome.GRANTED, explanation=told)


def _in_full(tx: Transaction, waiting: Waiting, outcome: do.Outcome) -> Explanation:
    """With every device's own answer, and when capacity is expected."""
    rule, inventory = held_back(tx, waiting), tx.state.inventory
    request = waiting.request
    if not impossible(request, inventory):  # else no quota is what stands in its way
        request = allowed(tx.state, request)
    told = with_verdicts(
        explained(tx, waiting.request, waiting), request, inventory, waiting.attempt
    )
    if outcome not in (do.Outcome.WAITING, do.Outcome.BUSY):
        return told
    if rule is not None:
        why = f"not the devices hold it back: {rule.words}"
        sentence = f"{told.sentence}; when it can be served is not known"
        return replace(told, expected_why=why, sentence=sentence)
    at_s, why = expected(request, tx.state, tx.budget, waiting.attempt)
    if at_s is None:
        sentence = f"{told.sentence}; when it can be served is not known: {why}"
        return replace(told, expected_why=why, sentence=sentence)
    in_s = max(0.0, at_s - tx.at_s)
    sentence = f"{told.sentence}; enough is expected to be free in {in_s:.0f} s: {why}"
    return replace(told, expected_s=in_s, expected_why=why, sentence=sentence)
