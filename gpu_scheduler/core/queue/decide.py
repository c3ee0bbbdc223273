"""The questions to the policy in force, and the effects of its answers.

A choice becomes a grant, with what the policy remembers; a pause arms a timer. An answer that
breaks the interface is an error of the policy, and fails the event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from corekit.ids import LeaseId
from gpu_scheduler.core.admission.quotas import within_quota
from gpu_scheduler.core.leases.leases import grant
from gpu_scheduler.core.queue.policy import (
    MEMORY_CHARS_MAX,
    MEMORY_MAX,
    Choice,
    HeldReason,
    Policy,
    Remembered,
    values_of,
)
from gpu_scheduler.core.queue.view import View, including
from gpu_scheduler.core.state.state import LeaseEntry
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.protocol import changes as to

_TIMER = "pause"


@dataclass(slots=True, kw_only=True)
class QueueTransaction(Transaction):
    """A transaction that may serve the queue, with the installed policies."""

    policies: Mapping[str, Policy]
    policy: Policy  #: in force
    drawn: int = 0  #: numbers that the policy drew for its last choice
    asked: View | None = None

    def view(self) -> View:
        """The input of a question to the policy.

        Requests and devices may have changed since the last one, which only an index follows.
        """
        policy = self.policy
        if self.asked is None or not policy.orders:
            values = values_of(policy, self.state.parameters) if policy.parameters else {}
            self.asked = View(self.state, self.budget, self.at_s, self.wall_s, values)
        return self.asked


def commit(
    tx: QueueTransaction,
    waiting: to.Waiting,
    choice: Choice,
    *,
    accepted: bool,
    after: tuple[LeaseId, ...] = (),
) -> LeaseEntry:
    """Grant what the policy chose, with what it remembers; ahead, if leases `after` hold it."""
    of = choice.reservation or waiting.attempt
    entry = grant(tx, waiting, choice.devices, reservation=of, accepted=accepted, after=after)
    if choice.remember or tx.drawn:
        remember(tx, choice.remember)
    return entry


def next_choice(tx: QueueTransaction) -> Choice | None:
    """The next grant; None after a pause, which is remembered and timed."""
    if tx.state.preemptions and (choice := _preempting(tx)) is not None:
        return choice
    policy, view = tx.policy, tx.view()
    answer = policy.decide(view)
    if policy.orders:  # its index has only requests that may be served, and it never waits
        return answer if isinstance(answer, Choice) else None
    tx.state.clear_freed()  # it saw the whole queue
    stop(tx)
    if isinstance(answer, Choice):
        _check(tx, answer)
        tx.drawn = view.drawn
        return answer
    if answer.until_s is not None:
        at_s = max(answer.until_s, tx.at_s + policy.pause_s_min)
        tx.state.timers.arm(TimerKind.POLICY, _TIMER, at_s)
    tx.drawn = 0
    remember(tx, answer.remember)
    return None


def _check(tx: QueueTransaction, choice: Choice) -> None:
    """Assert that a request may be served; `grant` asserts that the devices fit."""
    queue, name = tx.state.queue, tx.state.parameters.policy
    waiting = queue.entries.get(choice.attempt)
    assert waiting is not None, f"policy {name} chose {choice.attempt}, which is not waiting"
    assert not queue.is_ineligible(choice.attempt), f"{choice.attempt} has no session"
    assert within_quota(tx.state, waiting.request), f"{choice.attempt} is above its quota"


def _preempting(tx: QueueTransaction) -> Choice | None:
    """A request with devices that preemption has freed for it; None when there is none."""
    state, view = tx.state, tx.view()
    tx.drawn = 0
    for attempt, freed in state.preemptions.items():
        waiting = state.queue.entries.get(attempt)
        if waiting is None or state.queue.is_ineligible(attempt):
            continue
        devices = tx.policy.preempting(view, waiting, freed)
        if devices is not None:
            return Choice(attempt, devices)
    return None


def newcomer_choice(tx: QueueTransaction, waiting: to.Waiting) -> Choice | None:
    """The grant of a request that is not in the queue, if the policy chooses it next."""
    view = tx.view()
    choice = tx.policy.newcomer(view, waiting)
    tx.drawn = view.drawn
    return choice


def held_reason(tx: QueueTransaction, waiting: to.Waiting) -> HeldReason | None:
    """The reason why the policy in force lets this request wait."""
    with including(tx.state.queue, waiting):
        return tx.policy.held(tx.view(), waiting)


def stop(tx: QueueTransaction) -> None:
    """Cancel the timer of a pause: the queue is empty, or another policy is in force."""
    tx.state.timers.cancel(TimerKind.POLICY, _TIMER)


def switched(tx: QueueTransaction) -> None:
    """Use the policy in force, and drop what others remember that are installed."""
    state = tx.state
    for policy in list(state.memories):
        if policy != state.parameters.policy and policy in tx.policies:
            tx.emit(to.PolicyRemembered(policy=policy, dropped=True))
    tx.policy, tx.asked = tx.policies[state.parameters.policy], None
    if tx.policy.orders:
        state.queue.forget_workloads()
        stop(tx)


def remember(tx: QueueTransaction, remembered: Remembered) -> None:
    """Change the memory of the policy, and its place in the seeded stream."""
    state, memory, drawn = tx.state, tx.state.memory, tx.drawn
    changed = {
        name: value for name, value in remembered.items() if memory.values.get(name) != value
    }
    if not changed and not drawn:
        return
    name = state.parameters.policy
    more = sum(
        1 for key, value in changed.items() if value is not None and key not in memory.values
    )
    assert len(memory.values) + more <= MEMORY_MAX, f"policy {name} remembers too many values"
    longest = max((len(str(text)) for item in changed.items() for text in item), default=0)
    assert longest <= MEMORY_CHARS_MAX, f"policy {name} remembers a text of {longest} characters"
    draws = memory.draws + drawn
    tx.emit(to.PolicyRemembered(policy=name, seed=memory.seed, draws=draws, changed=changed))
