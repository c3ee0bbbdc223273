"""Restarts: no durable state is lost, peers get time to reconnect, deadlines stay bounded."""

from typing import Any

import pytest

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import IdSource
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.model import EndReason, LeaseLifetime, LeaseState, Request, Step
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.changes import Entry, EpochEnded, decode_entry, encode_parts
from tests.scheduler_world import World


def restart(world: World, down_s: float = 0.0) -> Any:
    world.now_s += down_s
    devices = dict(world.hosts)
    world.hosts.clear()
    world.start()
    return devices


def test_leases_records_and_queue_survive(one: World, whole: Request) -> None:
    lease = one.attempt("running", request=whole).granted.lease
    one.staged(lease)
    one.told("h1", lease, "opened")
    one.attempt("waits", request=whole)
    devices = restart(one, 10.0)
    one.alive["s1"] = None
    one.advance(1.0)
    welcome = one.host("h1", *devices["h1"], installed=(lease.id,), epoch_seen=1)
    assert (welcome.epoch, [i.lease for i in welcome.installs]) == (2, [lease.id])
    assert one.record("running").owner == "s1"
    one.told("h1", lease, "freed")
    assert [p.attempt for p in one.pushes(answers.GrantedPush, "s1")] == ["waits:1"]


def test_no_leases_before_a_host_reports(one: World) -> None:
    restart(one)
    answer = one.reserve("a")
    assert (answer.outcome, answer.explanation.counts) == (
        answers.Outcome.WAITING,
        {"HOST_STALE": 1},
    )


def test_a_host_that_does_not_return_is_lost(one: World) -> None:
    lease = one.attempt().granted.lease
    one.staged(lease)
    restart(one)
    one.alive["s1"] = None
    one.advance(one.budget.host_lost_s)
    assert one.pushes(answers.LeasePush)[0].reason is EndReason.HOST_LOST


def test_a_session_that_does_not_return_is_gone(one: World) -> None:
    one.attempt()
    restart(one)
    one.advance(one.budget.client_gone_s)
    assert one.record().owner is None


def test_a_grant_under_way_is_pushed_again(one: World, whole: Request) -> None:
    filler = one.reserve("filler", whole).granted.lease
    one.attempt(request=whole)
    one.release(filler)
    restart(one)
    one.ask(ops.Hello, "s1")
    assert [p.attempt for p in one.pushes(answers.GrantedPush, "s1")] == ["job:1"]


def test_a_deadline_lease_keeps_its_end(one: World) -> None:
    one.reserve(hold=LeaseLifetime.DEADLINE, lease_s=100.0)
    devices = restart(one, 60.0)
    one.host("h1", *devices["h1"], installed=[x.id for x in one.leases])
    assert one.answer().installs[0].cap_s == 40.0
    one.advance(39.0)
    assert len(one.leases) == 1
    one.advance(1.0)
    assert one.leases == []


def test_finished_records_are_forgotten_in_time(one: World) -> None:
    one.attempt()
    one.ask(ops.Finish, holder="job", outcome="SUCCEEDED", reason="NONE", detail="")
    restart(one, one.budget.record_forget_s - 10)
    assert one.record().step is Step.ENDED
    one.advance(10.0)
    assert one.machine.state.records == {}


def test_a_stall_of_the_scheduler_ends_nothing(one: World) -> None:
    one.alive["s1"] = None
    lease = one.attempt().granted.lease
    one.advance(5.0)
    one.now_s += 300.0  # SIGSTOP, SIGCONT: the tick comes first, far too late
    one.handle(on.Ticked)
    assert [x.id for x in one.leases] == [lease.id]
    assert one.record().owner == "s1"
    assert one.leases[0].state is LeaseState.RESERVED
    one.advance(one.budget.client_gone_s - 1)
    one.renew(lease)
    one.advance(30.0)
    assert len(one.leases) == 1


def test_a_stall_sets_no_deadline_to_running_leases(one: World) -> None:
    one.alive["s1"] = None
    lease = one.attempt().granted.lease
    one.told("h1", lease, "opened")
    one.now_s += 300.0
    one.handle(on.Ticked)
    one.advance(300.0)
    assert [x.state for x in one.leases] == [LeaseState.ACTIVE]


def test_silence_after_a_stall_is_detected(one: World) -> None:
    one.alive["s1"] = None
    one.attempt()
    one.now_s += 300.0
    one.handle(on.Ticked)
    one.hosts.clear()
    one.alive.clear()
    one.advance(one.budget.host_lost_s + 1)
    assert one.record().owner is None
    assert one.leases == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[1]",
        b'[["Nonsense", {}]]',
        b'[["HostForgotten", {}]]',
        b'[["HostForgotten", {"host": "h", "more": 1}]]',
        b'[["HostForgotten"]]',
    ],
)
def test_a_foreign_journal_line_is_refused(line: bytes) -> None:
    with pytest.raises(AppError, match=r"journal entry|HostForgotten"):
        decode_entry(line)


def test_a_snapshot_keeps_the_end_of_an_epoch(one: World) -> None:
    """Else a standby that begins with one waits for the silence of a leader that has stopped."""
    machine = SchedulerMachine(Budget(), IdSource("ended"))
    machine.apply(Entry(parts=tuple(one.machine.parts())))
    machine.apply(Entry(parts=(EpochEnded(epoch=machine.state.epoch),)))
    again = SchedulerMachine(Budget(), IdSource("again"))
    again.apply(Entry(parts=tuple(machine.parts())))
    assert again.state.epoch_ended
    assert again.state.position == machine.state.position
    assert encode_parts(again.parts()) == encode_parts(machine.parts())
