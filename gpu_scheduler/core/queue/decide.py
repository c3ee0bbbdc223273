"""The questions to a deciding policy, and the effects of its answers.

A choice becomes a proposal, with what the policy remembers; a pause arms a timer. An answer that
breaks the interface is an error of the policy, and fails the event.
"""

from __future__ import annotations

from gpu_scheduler.core.admission.quotas import clamped_to_quota, within_quota
from gpu_scheduler.core.placement.fits import fits
from gpu_scheduler.core.queue.policy import (
    MEMORY_CHARS_MAX,
    MEMORY_MAX,
    Choice,
    DecidingPolicy,
    HeldReason,
    Pause,
    Remembered,
)
from gpu_scheduler.core.queue.policy_view import View, including
from gpu_scheduler.core.queue.search import Proposal
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.protocol import changes as to

#: The shortest pause that a timer measures: a policy that names the present is asked again soon.
PAUSE_S_MIN = 0.01
_TIMER = "pause"


def next_choice(tx: Transaction, policy: DecidingPolicy) -> Proposal | None:
    """The next grant; None after a pause, which is remembered and timed."""
    view = _view(tx, policy)
    answer = policy.decide(view)
    tx.state.timers.cancel(TimerKind.POLICY, _TIMER)
    if isinstance(answer, Choice):
        return _proposal(tx, view, answer)
    if answer.until_s is not None:
        at_s = max(answer.until_s, tx.at_s + PAUSE_S_MIN)
        tx.state.timers.arm(TimerKind.POLICY, _TIMER, at_s)
    if (part := _remembered(tx, answer.remember, 0)) is not None:
        tx.emit(part)
    return None


def preempting_choice(tx: Transaction) -> Proposal | None:
    """A request with devices that preemption has freed for it; None when there is none.

    It is not the policy's choice: another request's turn on those devices would wait for them, and
    this one for its turn, without end.
    """
    state = tx.state
    for attempt, preemption in state.preemptions.items():
        waiting = state.queue.entries.get(attempt)
        if waiting is None or state.queue.is_ineligible(attempt):
            continue
        asked = clamped_to_quota(state, waiting.request)
        places = [state.inventory.state_of(device) for device in preemption.devices]
        if all(fits(asked, place, attempt) is None for place in places):
            return Proposal(
                key=state.queue.queue_key(waiting),
                waiting=waiting,
                devices=preemption.devices,
                reservation=attempt,
            )
    return None


def newcomer_choice(
    tx: Transaction, policy: DecidingPolicy, waiting: to.Waiting
) -> Proposal | None:
    """The grant of a request that is not in the queue, if the policy chooses it next."""
    with including(tx.state.queue, waiting):
        view = _view(tx, policy)
        answer = policy.decide(view)
        if isinstance(answer, Pause) or answer.attempt != waiting.attempt:
            return None
        return _proposal(tx, view, answer)


def held_reason(tx: Transaction, policy: DecidingPolicy, waiting: to.Waiting) -> HeldReason | None:
    """The reason why the policy in force lets this request wait."""
    with including(tx.state.queue, waiting):
        return policy.held(_view(tx, policy), waiting)


def stop(tx: Transaction) -> None:
    """Cancel the timer of a pause: the queue is empty, or another policy is in force."""
    tx.state.timers.cancel(TimerKind.POLICY, _TIMER)


def switched(tx: Transaction) -> None:
    """Drop what policies remember that are installed and not in force."""
    state = tx.state
    for policy in list(state.memories):
        if policy != state.parameters.policy and policy in state.policies:
            tx.emit(to.PolicyRemembered(policy=policy, dropped=True))
    if state.deciding is None:
        state.queue.forget_workloads()
        stop(tx)


def _view(tx: Transaction, policy: DecidingPolicy) -> View:
    return View(policy, tx.state, tx.budget, tx.at_s, tx.wall_s)


def _proposal(tx: Transaction, view: View, choice: Choice) -> Proposal:
    """The proposal of a choice; `grant` asserts that its devices fit."""
    queue = tx.state.queue
    waiting = queue.entries.get(choice.attempt)
    name = tx.state.parameters.policy
    assert waiting is not None, f"policy {name} chose {choice.attempt}, which is not waiting"
    assert not queue.is_ineligible(choice.attempt), f"{choice.attempt} has no session"
    assert within_quota(tx.state, waiting.request), f"{choice.attempt} is above its quota"
    return Proposal(
        key=queue.queue_key(waiting),
        waiting=waiting,
        devices=choice.devices,
        reservation=waiting.attempt,
        remembered=_remembered(tx, choice.remember, view.drawn),
    )


def _remembered(tx: Transaction, remember: Remembered, drawn: int) -> to.PolicyRemembered | None:
    """The change of the policy's memory; None when there is none."""
    state, memory = tx.state, tx.state.memory
    changed = {name: value for name, value in remember.items() if memory.values.get(name) != value}
    if not changed and not drawn:
        return None
    name = state.parameters.policy
    more = sum(
        1 for key, value in changed.items() if value is not None and key not in memory.values
    )
    assert len(memory.values) + more <= MEMORY_MAX, f"policy {name} remembers too many values"
    longest = max((len(str(text)) for item in changed.items() for text in item), default=0)
    assert longest <= MEMORY_CHARS_MAX, f"policy {name} remembers a text of {longest} characters"
    return to.PolicyRemembered(
        policy=name, seed=memory.seed, draws=memory.draws + drawn, changed=changed
    )
