"""Withdrawal of a reservation: neither the queue nor a lease keeps anything of it."""

from _pytest.monkeypatch import MonkeyPatch

from corekit.errors import ErrorCode
from gpu_scheduler.core import actions as do
from gpu_scheduler.core.handlers import sessions
from gpu_scheduler.model import EndReason, LeaseState, Request
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import changes as to
from tests.scheduler_world import device, world_with


def test_a_withdrawn_request_unblocks_the_next(whole: Request) -> None:
    world = world_with(device("a"))
    held = world.reserve("a", whole).granted.lease
    assert world.reserve("b", whole, session="s2", wait=True).outcome is answers.Outcome.WAITING
    assert world.reserve("c", whole, session="s3", wait=True).outcome is answers.Outcome.WAITING
    assert world.ask(ops.Withdraw, session="s2", attempt="b") == answers.Done()
    assert list(world.machine.state.queue.entries) == ["c"]
    world.release(held)
    assert [lease.attempt for lease in world.leases] == ["c"]
    for _ in range(2):  # unknown is success, and nothing is journalled
        assert world.ask(ops.Withdraw, session="s2", attempt="b") == answers.Done()
        assert [type(action) for action in world.actions] == [do.Reply]


def test_withdrawing_ends_a_lease_granted_meanwhile(whole: Request) -> None:
    world = world_with(device("a"))
    lease = world.reserve("a", whole).granted.lease
    assert world.ask(ops.Withdraw, attempt="a") == answers.Done()
    assert not world.leases
    pushed = [a.push for a in world.actions if isinstance(a, do.PushToSession)]
    ended = [p for p in pushed if isinstance(p, answers.LeasePush) and p.lease == lease.id]
    assert [(p.state, p.reason) for p in ended] == [(LeaseState.ENDED, EndReason.RELEASED)]


def test_a_request_of_another_session_is_not_withdrawn(whole: Request) -> None:
    world = world_with(device("a"))
    world.reserve("a", whole)
    world.reserve("b", whole, session="s2", wait=True)
    for attempt in ("a", "b"):
        world.ask(ops.Withdraw, session="stranger", attempt=attempt)
        assert world.answer().code is ErrorCode.CONFLICT
    assert [lease.attempt for lease in world.leases] == ["a"]
    assert list(world.machine.state.queue.entries) == ["b"]


def test_a_gone_session_is_cleaned_up_in_parts(whole: Request, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "GONE_AT_ONCE", 5)
    world = world_with(device("a"))
    world.reserve("a", whole, session="s1")
    for number in range(6):
        world.attempt(f"job{number}", request=whole, session="gone")
        world.reserve(f"w{number}", whole, session="gone", wait=True)
    before = len(world.journal)
    world.advance(world.budget.client_gone_s + 1)
    theirs = (to.RecordWritten, to.RequestDropped)
    parts = [sum(isinstance(p, theirs) for p in e.parts) for e in world.journal[before:]]
    assert [count for count in parts if count] == [5, 5, 2]
    state = world.machine.state
    assert (len(state.orphans), len(state.queue.entries)) == (6, 6)  # jobs wait, parked
    assert not state.owned
    assert not state.queue.by_session
