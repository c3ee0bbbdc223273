"""Answers to ops that only read the state: inventory, leases, queue, records, explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId, LeaseId, attempt_id
from corekit.units import format_duration, percent_of
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission.quotas import request_to_explain
from gpu_scheduler.core.handlers import departures, floors
from gpu_scheduler.core.inventory.devices import COMPUTE_PERMILLE_MAX
from gpu_scheduler.core.inventory.inventory import DeviceEntry, HostEntry
from gpu_scheduler.core.inventory.residents import Residents
from gpu_scheduler.core.leases.leases import wait_ahead_s
from gpu_scheduler.core.leases.lengths import check_length, expected
from gpu_scheduler.core.placement.capacity import is_infeasible
from gpu_scheduler.core.placement.eviction import NOTHING_TAKEN, resident_key
from gpu_scheduler.core.placement.explain import with_verdicts
from gpu_scheduler.core.queue import advance, preemption
from gpu_scheduler.core.queue.decide import QueueTransaction, held_reason
from gpu_scheduler.core.queue.dispatch import evaluate, explanation_of, held_back
from gpu_scheduler.core.queue.policy import Choice
from gpu_scheduler.core.state.state import LeaseEntry
from gpu_scheduler.core.views.workloads import starts_warm, with_expected_runs
from gpu_scheduler.model import LeaseState, Record, Request
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.changes import Waiting
from gpu_scheduler.protocol.pools import PoolView
from gpu_scheduler.request_text import request_text
from gpu_scheduler.verdicts import Explanation, HeldBack

T = TypeVar("T")

#: The attempt of a dry run.
DRY_RUN = AttemptId("")


def orphans(tx: QueueTransaction, event: on.Asked[ops.Orphans]) -> answers.RecordsAnswer:
    """Ownerless records, longest first, except those that the caller may not take."""
    known = (tx.state.records[holder] for holder in tx.state.orphans)
    own = (record for record in known if record.key not in event.foreign)
    records = tuple(islice(own, event.op.limit))
    return answers.RecordsAnswer(records=records)


def record(tx: QueueTransaction, event: on.Asked[ops.RecordOf]) -> answers.RecordAnswer:
    return answers.RecordAnswer(record=tx.state.records.get(event.op.holder))


def records(tx: QueueTransaction, event: on.Asked[ops.Records]) -> answers.RecordsAnswer:
    """A page of records, newest first; empty if the cursor record was forgotten."""
    state, op = tx.state, event.op
    holders = islice(state.record_order.newest(op.after), op.limit)
    page = tuple(state.records[holder] for holder in holders)
    return answers.RecordsAnswer(records=page)


def inventory(tx: QueueTransaction, event: on.Asked[ops.Inventory]) -> answers.InventoryAnswer:
    known, after, limit = tx.state.inventory, event.op.after, event.op.limit
    by_name = sorted(known.hosts.values(), key=lambda host: host.host)
    wanted = (host for host in by_name if after is None or host.host > after)
    page, more = _first(wanted, limit, lambda host: len(host.devices))
    declared = () if after is not None else known.declared[:limit]
    kept_warm, floors_left_out = ((), 0) if after is not None else floors.views(tx)
    return answers.InventoryAnswer(
        hosts=tuple(_host(tx, host) for host in page),
        declared=declared,
        declared_left_out=0 if after is not None else len(known.declared) - len(declared),
        more=more,
        fleet=None if after is not None else tx.state.fleets.view(tx.at_s),
        floors=kept_warm,
        floors_left_out=floors_left_out,
    )


def leases(tx: QueueTransaction, event: on.Asked[ops.Leases]) -> answers.LeasesAnswer:
    entries = tx.state.leases.values()  # in the order of their fences
    wanted = (entry for entry in entries if entry.lease.fence > event.op.after)
    page, more = _first(wanted, event.op.limit, lambda entry: len(entry.lease.shares))
    return answers.LeasesAnswer(
        leases=tuple(entry.lease for entry in page),
        ends_in_s={
            entry.lease.id: max(0.0, entry.deadline_s - tx.at_s)
            for entry in page
            if entry.deadline_s is not None
        },
        more=more,
    )


def queue(tx: QueueTransaction, event: on.Asked[ops.Queue]) -> answers.QueueAnswer:
    """Waiting requests in the order of service, ownerless ones last."""
    waiting = tx.state.queue
    places = (
        (None if waiting.is_ineligible(w.attempt) else i, w)
        for i, w in enumerate(waiting.in_order(event.op.limit), 1)
    )
    page = tuple(_queued(w, place) for place, w in places)
    return answers.QueueAnswer(queue=page, left_out=len(waiting.entries) - len(page))


def _first(
    wanted: Iterable[T], limit: int | None, size: Callable[[T], int]
) -> tuple[list[T], bool]:
    """The first items whose sizes add up to `limit` (at least one item); True if there are more."""
    page: list[T] = []
    total = 0
    for one in wanted:
        total += size(one)
        if limit is not None and total > limit and page:
            return page, True
        page.append(one)
    return page, False


def _host(tx: QueueTransaction, host: HostEntry) -> answers.HostView:
    drain = host.own_drain
    left_s = None if drain is None else departures.left_s(tx, drain)
    return answers.HostView(
        host=host.host,
        state=host.shown_state,
        gateway=host.gateway,
        incarnation=host.incarnation,
        silent_s=max(0.0, tx.at_s - host.last_seen_s),
        devices=tuple(_device(one, tx.state.inventory.residents) for one in host.devices.values()),
        middlewares=host.middlewares,
        draining=None if drain is None else answers.DrainView(reason=drain.reason, left_s=left_s),
        ephemeral=host.ephemeral,
        forgotten_in_s=departures.forgotten_in_s(tx, host),
        data=dict(host.data),
        programs=dict(host.programs),
    )


def _device(entry: DeviceEntry, residents: Residents) -> answers.DeviceView:
    return answers.DeviceView(
        device=entry.device,
        memory_free_mib=entry.device.memory_mib - entry.allocated_mib,
        compute_free_pct=percent_of(COMPUTE_PERMILLE_MAX - entry.allocated_permille),
        leases=tuple(entry.shares),
        usage=entry.usage,
        drained=entry.drained,
        residents=tuple(residents.of(entry.device.id).values()),
    )


def _queued(waiting: Waiting, position: int | None) -> answers.QueuedView:
    return answers.QueuedView(
        attempt=waiting.attempt,
        holder=waiting.holder,
        request=waiting.request,
        position=position,
        waiting_since_s=waiting.waiting_since_s,
        session=waiting.session,
    )


def explain(tx: QueueTransaction, event: on.Asked[ops.Explain]) -> answers.ExplainAnswer:
    """Explain a queued, granted or refused request by attempt or holder, or a dry run."""
    answer, request = _explained(tx, event)
    floor, why = floors.view_of(tx, request), answer.explanation
    if floor is None:
        return answer
    why = replace(why, floor=floor, sentence=f"{why.sentence}; {floor.short_text}")
    return replace(answer, explanation=why)


def _explained(
    tx: QueueTransaction, event: on.Asked[ops.Explain]
) -> tuple[answers.ExplainAnswer, Request]:
    op = event.op
    state, attempt = tx.state, op.attempt
    record = tx.record_of(op.holder)
    if record is not None:
        attempt = attempt_id(record.holder, record.attempt)
    lease = state.leases.get(state.lease_of.get(attempt or "", LeaseId("")))
    if lease is not None:
        return _granted(tx, lease), lease.request
    waiting = state.queue.entries.get(attempt or "")
    if waiting is not None:
        explanation = _in_full(tx, waiting, answers.Outcome.WAITING)
        answer = answers.ExplainAnswer(outcome=answers.Outcome.WAITING, explanation=explanation)
        return answer, waiting.request
    newcomer = _newcomer(tx, event, state.refused.get(attempt or ""))
    if newcomer is None:
        raise AppError(ErrorCode.NOT_FOUND, _nothing(event, record))
    check_length(state.parameters, op.hold, newcomer.lease_s)
    evaluation = evaluate(tx, newcomer)
    explanation = _in_full(tx, newcomer, evaluation.outcome, evaluation.choice)
    if evaluation.full is not None:
        sentence = f"{explanation.sentence}; {evaluation.full.message}"
        explanation = replace(explanation, sentence=sentence)
    answer = answers.ExplainAnswer(outcome=evaluation.outcome, explanation=explanation)
    return answer, newcomer.request


def _newcomer(
    tx: QueueTransaction, event: on.Asked[ops.Explain], refused: Waiting | None
) -> Waiting | None:
    """The request of a dry run, or a refused request, as if it arrived now."""
    op = event.op
    request = op.request
    if request is None:
        return (
            None
            if refused is None
            else replace(refused, attempt=DRY_RUN, waiting_since_s=tx.wall_s)
        )
    return Waiting(
        attempt=DRY_RUN,
        holder=None,
        request=request,
        session=event.session,
        waiting_since_s=tx.wall_s,
        hold=op.hold,
        lease_s=request.lease_s if op.lease_s is None else op.lease_s,
    )


def _nothing(event: on.Asked[ops.Explain], record: Record | None) -> str:
    op = event.op
    if record is not None:
        reason = f", {record.reason}" if record.reason else ""
        return f"{record.holder} has no open request: it is {record.step}{reason}"
    name = op.attempt or op.holder
    return f"no request {name} is waiting, granted or recently refused; a dry run needs a request"


def _granted(tx: QueueTransaction, entry: LeaseEntry) -> answers.ExplainAnswer:
    explanation = explanation_of(tx, entry.request)
    where = ", ".join(f"{share.host}/{share.index}" for share in entry.lease.shares)
    sentence = f"{request_text(entry.request)} is granted: lease {entry.lease.id} on {where}"
    explanation = replace(explanation, sentence=sentence, short=None)
    if entry.ahead:
        explanation = _ahead(tx, entry, where, explanation)
    warm_start = None
    if resident_key(entry.request) is not None and entry.lease.state is not LeaseState.ENDING:
        takes = (entry.taken.get(share.device, NOTHING_TAKEN) for share in entry.lease.shares)
        warm_start = all(one.used is not None for one in takes)
    explanation = with_expected_runs(explanation, entry.request, tx.state, warm_start)
    return answers.ExplainAnswer(outcome=answers.Outcome.GRANTED, explanation=explanation)


def _ahead(
    tx: QueueTransaction, entry: LeaseEntry, where: str, explanation: Explanation
) -> Explanation:
    """Add when a lease that was granted ahead has its shares."""
    in_s, after = advance.booked_in_s(tx, entry), " and ".join(entry.lease.after)
    wait_s, cut = wait_ahead_s(tx.state, entry)
    when = "at an unknown time" if in_s is None else f"in {format_duration(in_s)}"
    text = f"{request_text(entry.request)} is granted ahead: lease {entry.lease.id} on {where},"
    return replace(
        explanation,
        sentence=f"{text} behind {after}, and expects its device {when}, or is withdrawn"
        f" after {wait_s:g} s{cut}",
        after=entry.lease.after,
        expected_s=in_s,
        expected_why="learned times of the leases before it",
    )


def _held_by_policy(
    tx: QueueTransaction, waiting: Waiting, explanation: Explanation
) -> Explanation:
    """Add the time until which the policy lets the request wait."""
    held = held_reason(tx, waiting)
    until_s = None if held is None else held.until_s
    in_s = None if until_s is None else max(0.0, until_s - tx.at_s)
    return replace(explanation, expected_s=in_s, expected_why="the policy lets it wait")


def _in_full(
    tx: QueueTransaction,
    waiting: Waiting,
    outcome: answers.Outcome,
    choice: Choice | None = None,
) -> Explanation:
    explanation = _with_capacity(tx, waiting, outcome)
    if explanation.short is not None:
        return explanation
    request = waiting.request
    warm_start = None if choice is None else starts_warm(request, tx.state, choice.devices)
    return with_expected_runs(explanation, request, tx.state, warm_start)


def _with_capacity(tx: QueueTransaction, waiting: Waiting, outcome: answers.Outcome) -> Explanation:
    """The explanation with the result of each device, and the expected time of capacity."""
    rule, inventory = held_back(tx, waiting), tx.state.inventory
    request = waiting.request
    if not is_infeasible(request, inventory):
        request = request_to_explain(tx.state, request)
    explanation = with_verdicts(
        explanation_of(tx, waiting.request, waiting), request, inventory, waiting.attempt
    )
    if outcome not in (answers.Outcome.WAITING, answers.Outcome.BUSY):
        return explanation
    if rule is not None:
        why = f"blocked by policy, not by capacity: {rule.text}"
        sentence = f"{explanation.sentence}; when it can be served is unknown"
        return replace(explanation, expected_why=why, sentence=sentence)
    if explanation.held_back is HeldBack.POLICY:
        return _held_by_policy(tx, waiting, explanation)
    at_s, why = preemption.expected(tx, waiting) or expected(
        request, tx.state, tx.budget, waiting.attempt
    )
    in_s = None if at_s is None else max(0.0, at_s - tx.at_s)
    of_fleet = _with_next_host(tx, request, explanation, in_s)
    if of_fleet is not None:
        return of_fleet
    if in_s is None:
        sentence = f"{explanation.sentence}; when it can be served is unknown: {why}"
        return replace(explanation, expected_why=why, sentence=sentence)
    sentence = f"{explanation.sentence}; enough is expected to be free in {in_s:.0f} s: {why}"
    return replace(explanation, expected_s=in_s, expected_why=why, sentence=sentence)


def _with_next_host(
    tx: QueueTransaction, request: Request, explanation: Explanation, free_in_s: float | None
) -> Explanation | None:
    """Add the host of a pool that is expected before known devices are free; None: there is none.

    One that is late may not come, so it is only added where nothing else is expected. Without any,
    the reason why the pools that fit start no host is added.
    """
    pools = list(tx.state.fleets.fitting(request, tx.at_s))
    due = [(in_s, pool) for pool in pools if (in_s := pool.expected_in_s) is not None]
    coming = due if free_in_s is None else [one for one in due if 0.0 < one[0] < free_in_s]
    if coming:
        in_s, first = min(coming, key=lambda one: (one[0] <= 0.0, one[0], one[1].name))
        why = _next_host_text(first)
        sentence = f"{explanation.sentence}; it waits for {why}"
        return replace(
            explanation, expected_s=in_s, expected_why=why, sentence=sentence, pool=first.name
        )
    closed = [f"pool {pool.name} starts no host: {pool.closed}" for pool in pools if pool.closed]
    if not closed or free_in_s is not None:
        return None
    why = "; ".join(closed)
    return replace(explanation, expected_why=why, sentence=f"{explanation.sentence}; {why}")


def _next_host_text(pool: PoolView) -> str:
    """`a host of pool a10g, started 40 s ago, expected in 50 s`."""
    in_s = pool.expected_in_s or 0.0
    verb = "ordered" if pool.started_ago_s is None else "started"
    ago_s = pool.ordered_ago_s if pool.started_ago_s is None else pool.started_ago_s
    when = f"expected in {format_duration(in_s)}" if in_s else "late, expected at any moment"
    return f"a host of pool {pool.name}, {verb} {format_duration(ago_s or 0.0)} ago, {when}"
