"""The questions to the policy in force, and the effects of its answers.

A choice becomes a proposal, with what the policy remembers; a pause arms a timer. An answer that
breaks the interface is an error of the policy, and fails the event.
"""

from __future__ import annotations

from typing import NamedTuple

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.quotas import within_quota
from gpu_scheduler.core.leases.leases import grant
from gpu_scheduler.core.queue.policy import (
    MEMORY_CHARS_MAX,
    MEMORY_MAX,
    Choice,
    HeldReason,
    QueueTransaction,
    Remembered,
)
from gpu_scheduler.core.queue.view import View, including
from gpu_scheduler.core.state.state import LeaseEntry
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.protocol import changes as to

#: The shortest pause that a timer measures: a policy that names the present is asked again soon.
PAUSE_S_MIN = 0.01
_TIMER = "pause"


class Proposal(NamedTuple):
    """One request and the devices for it."""

    waiting: to.Waiting
    devices: tuple[DeviceId, ...]
    reservation: str  #: attempt whose reserved devices the request may use: its own or the head's
    remembered: to.PolicyRemembered | None = None  #: by the policy, with this grant


def commit(tx: QueueTransaction, proposal: Proposal, *, accepted: bool) -> LeaseEntry:
    """Grant a proposal, with what the policy remembers."""
    waiting, devices, reservation, remembered = proposal
    entry = grant(tx, waiting, devices, reservation=reservation, accepted=accepted)
    if remembered is not None:
        tx.emit(remembered)
    return entry


def next_choice(tx: QueueTransaction) -> Proposal | None:
    """The next grant; None after a pause, which is remembered and timed."""
    if tx.state.preemptions and (proposal := _preempting(tx)) is not None:
        return proposal
    view = tx.view()
    answer = tx.policy.decide(view)
    stop(tx)
    if isinstance(answer, Choice):
        queue, name = tx.state.queue, tx.state.parameters.policy
        waiting = queue.entries.get(answer.attempt)
        assert waiting is not None, f"policy {name} chose {answer.attempt}, which is not waiting"
        assert not queue.is_ineligible(answer.attempt), f"{answer.attempt} has no session"
        return _proposal(tx, view, waiting, answer)
    if answer.until_s is not None:
        at_s = max(answer.until_s, tx.at_s + PAUSE_S_MIN)
        tx.state.timers.arm(TimerKind.POLICY, _TIMER, at_s)
    if (part := _remembered(tx, answer.remember, 0)) is not None:
        tx.emit(part)
    return None


def _preempting(tx: QueueTransaction) -> Proposal | None:
    """A request with devices that preemption has freed for it; None when there is none."""
    state, view = tx.state, tx.view()
    for attempt, preemption in state.preemptions.items():
        waiting = state.queue.entries.get(attempt)
        if waiting is None or state.queue.is_ineligible(attempt):
            continue
        devices = tx.policy.preempting(view, waiting, preemption.devices)
        if devices is not None:
            return Proposal(waiting, devices, reservation=attempt)
    return None


def newcomer_choice(tx: QueueTransaction, waiting: to.Waiting) -> Proposal | None:
    """The grant of a request that is not in the queue, if the policy chooses it next."""
    view = tx.view()
    choice = tx.policy.newcomer(view, waiting)
    return None if choice is None else _proposal(tx, view, waiting, choice)


def held_reason(tx: QueueTransaction, waiting: to.Waiting) -> HeldReason | None:
    """The reason why the policy in force lets this request wait."""
    if tx.policy.orders:
        return None
    with including(tx.state.queue, waiting):
        return tx.policy.held(tx.view(), waiting)


def stop(tx: QueueTransaction) -> None:
    """Cancel the timer of a pause: the queue is empty, or another policy is in force."""
    tx.state.timers.cancel(TimerKind.POLICY, _TIMER)


def switched(tx: QueueTransaction) -> None:
    """Drop what policies remember that are installed and not in force."""
    state = tx.state
    for policy in list(state.memories):
        if policy != state.parameters.policy and policy in tx.policies:
            tx.emit(to.PolicyRemembered(policy=policy, dropped=True))
    if tx.policy.orders:
        state.queue.forget_workloads()
        stop(tx)


def _proposal(tx: QueueTransaction, view: View, waiting: to.Waiting, choice: Choice) -> Proposal:
    """The proposal of a choice; `grant` asserts that its devices fit."""
    assert within_quota(tx.state, waiting.request), f"{choice.attempt} is above its quota"
    remembered = _remembered(tx, choice.remember, view.drawn)
    return Proposal(waiting, choice.devices, choice.reservation or waiting.attempt, remembered)


def _remembered(
    tx: QueueTransaction, remember: Remembered, drawn: int
) -> to.PolicyRemembered | None:
    """The change of the policy's memory; None when there is none."""
    if not remember and not drawn:
        return None
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
