"""Health of devices: SUSPECT or BAD, and offered again only after a clean check."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import ErrorCode
from corekit.ids import DeviceId
from gpu_scheduler.model import Device, EndReason, Health, Request, Symptom, Usage
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World, device

BAD: dict[str, Any] = {
    "health": Health.BAD,
    "symptoms": (Symptom.XID,),
    "detail": "Xid 79: fell off the bus",
}
SUSPECT: dict[str, Any] = {
    "health": Health.SUSPECT,
    "symptoms": (Symptom.MEMORY_HELD,),
    "detail": "900 MiB held",
}


def shown(world: World, name: str = "d1") -> Device:
    return world.machine.state.inventory.devices[DeviceId(name)].device


@pytest.fixture
def patient(one: World) -> World:
    """One device, and a session that waits without a limit."""
    one.alive["s1"] = None
    return one


def test_a_suspect_device_keeps_its_lease_and_gets_no_new_one(patient: World) -> None:
    lease = patient.reserve("a", Request(memory_mib=100)).granted.lease
    patient.report("h1", device("d1", **SUSPECT))
    assert [x.id for x in patient.leases] == [lease.id]
    answer = patient.reserve("b", Request(memory_mib=100))
    assert (answer.outcome, answer.explanation.counts) == (answers.Outcome.WAITING, {"SUSPECT": 1})
    patient.report("h1", device("d1"))  # one clean look clears a suspicion
    assert [p.attempt for p in patient.pushes(answers.GrantedPush)] == ["b"]


def test_a_bad_device_recovers_by_staying_clean(patient: World) -> None:
    lease = patient.reserve("a").granted.lease
    patient.report("h1", device("d1", **BAD))
    [ended] = patient.pushes(answers.LeasePush, "s1")
    assert (ended.lease, ended.reason) == (lease.id, EndReason.DEVICE_BAD)
    assert "Xid 79" in ended.detail
    assert patient.reserve("b").explanation.counts == {"BAD": 1}
    patient.report("h1", device("d1"))
    assert (shown(patient).health, shown(patient).symptoms) == (
        Health.SUSPECT,
        (Symptom.RECOVERING,),
    )
    assert "Xid 79" in shown(patient).detail
    patient.advance(patient.budget.device_clean_s - 0.5)
    assert patient.leases == []
    patient.advance(0.5)
    assert [x.attempt for x in patient.leases] == ["b"]
    assert shown(patient) == device("d1")


def test_any_other_report_restarts_the_recovery(patient: World) -> None:
    patient.report("h1", device("d1", **BAD))
    patient.report("h1", device("d1"))
    patient.advance(patient.budget.device_clean_s - 1)
    patient.report("h1", device("d1", **SUSPECT))
    assert shown(patient).symptoms == (Symptom.MEMORY_HELD, Symptom.RECOVERING)
    patient.advance(patient.budget.device_clean_s)
    patient.report("h1", device("d1"))
    assert shown(patient).health is Health.SUSPECT
    patient.advance(patient.budget.device_clean_s)
    assert shown(patient).health is Health.OK


def test_a_restart_does_not_shorten_the_recovery(patient: World) -> None:
    patient.report("h1", device("d1", **BAD))
    patient.report("h1", device("d1"))
    patient.advance(patient.budget.device_clean_s - 1)
    patient.start()
    patient.host("h1", device("d1"))
    patient.advance(patient.budget.device_clean_s - 1)
    assert shown(patient).health is Health.SUSPECT
    patient.advance(1)
    assert shown(patient).health is Health.OK


def test_a_silent_host_ends_no_recovery(patient: World) -> None:
    patient.report("h1", device("d1", **BAD))
    patient.report("h1", device("d1"))
    patient.hosts.clear()
    patient.advance(patient.budget.device_clean_s + 1)
    assert shown(patient).health is Health.SUSPECT
    patient.host("h1", device("d1"))
    patient.advance(patient.budget.device_clean_s + 1)
    assert shown(patient).health is Health.OK


def test_other_devices_are_not_affected(world: World) -> None:
    world.host("h1", device("d1"), device("d2", index=1))
    gang = world.reserve("gang", Request(count=2, memory_mib=300)).granted.lease
    single = world.reserve("single", Request(memory_mib=600)).granted.lease
    [used] = [share.device for share in single.shares]
    other = "d2" if used == "d1" else "d1"
    index = {"d1": 0, "d2": 1}
    world.report("h1", device(other, index=index[other], **BAD), device(used, index=index[used]))
    assert [x.id for x in world.leases] == [single.id]  # a gang lives on all of its devices
    assert gang.id not in world.machine.state.leases
    assert world.reserve("next", Request(memory_mib=400)).granted.lease.shares[0].device == used


def test_an_empty_report_resets_the_silence_and_changes_nothing(patient: World) -> None:
    patient.report("h1", device("d1", **SUSPECT))
    before = len(patient.journal)
    patient.handle(host_ops.Report, host="h1", reply_to="h", devices=None, usage=())
    assert patient.answer() == answers.Done()
    assert (len(patient.journal), shown(patient).health) == (before, Health.SUSPECT)


def test_one_device_can_be_drained(world: World, whole: Request) -> None:
    world.host("h1", device("d1"), device("d2", index=1))
    assert world.ask(ops.Drain, host="h1", device="d1") == answers.Done()
    assert world.reserve("a", whole).granted.lease.shares[0].device == "d2"
    assert world.reserve("b", whole).explanation.counts == {"DRAINED": 1, "EXCLUSIVE_TAKEN": 1}
    world.start()
    world.host("h1", device("d1"), device("d2", index=1))
    assert world.machine.state.inventory.devices[DeviceId("d1")].drained
    world.ask(ops.Undrain, host="h1", device="d1")
    assert [x.attempt for x in world.leases][-1] == "b"
    assert world.ask(ops.Drain, host="h1", device="d9").code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("what", [{}, {"device": "d1"}])
def test_draining_can_revoke_live_leases(one: World, what: dict[str, str]) -> None:
    one.reserve("a")
    one.ask(ops.Drain, host="h1", revoke=True, **what)
    [push] = one.pushes(answers.LeasePush, "s1")
    assert push.reason is EndReason.REVOKED
    assert one.leases == []


@pytest.mark.parametrize("named", [("d1", "d1"), ("d2",), ("other",)])
def test_usage_of_unknown_devices_and_duplicates_is_refused(
    world: World, named: tuple[str] | tuple[str, str]
) -> None:
    world.host("h1", device("d1"))
    world.host("h2", device("d2"))
    usage = tuple(Usage(device=DeviceId(d), memory_used_mib=1, utilisation_pct=1) for d in named)
    before = len(world.journal)
    world.report("h1", device("d1"), usage=usage)
    assert world.answer().code is ErrorCode.INVALID
    assert len(world.journal) == before
    assert world.machine.state.inventory.devices[DeviceId("d1")].usage is None
