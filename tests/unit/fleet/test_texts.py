"""Sentences about actions and notices, and the memory of a fleet between two starts."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from corekit.errors import AppError
from corekit.values import replace
from gpu_scheduler.model import HostState
from orchgpu.fleet.core.decide import decide
from orchgpu.fleet.core.model import (
    Action,
    Drain,
    Host,
    Memory,
    NoticeCode,
    Offers,
    PolicyName,
    PoolMemory,
    Reason,
    Rules,
    Start,
    Stop,
    View,
)
from orchgpu.fleet.program import MemoryFile, groups_of
from orchgpu.fleet.texts import action_text, host_states, notice_text
from tests.fleet_world import BEGIN_S, FleetWorld, demand, offer
from tests.property.test_fleet import happen


def worlds() -> list[FleetWorld]:
    """Worlds in which every reason and every notice comes up."""
    pools = (offer(max=2, buffer=1, min=1), offer("dear", usd_per_h=2.0, max=2))
    busy = FleetWorld(pools, Rules(usd_per_hour_max=4.0, usd_per_month_max=0.3))
    busy.submit(9, 300.0)
    busy.run(900.0)
    refused = FleetWorld((offer(max=1),), Rules(target_wait_s=0.0), refusing={"a10g"})
    refused.submit(3, 600.0)
    refused.run(300.0)
    changing = FleetWorld((offer(),), deaf={"a10g"})
    changing.submit(1)
    changing.run(200.0)
    changing.deaf.clear()
    changing.run(300.0)
    happen(changing, ("lose", 0))
    changing.run(900.0)
    impatient = FleetWorld((offer(),), refusing={"a10g"})
    impatient.submit(1)
    impatient.run(20.0)
    impatient.queue.clear()
    impatient.run(20.0)
    fixed = FleetWorld((offer(max=1),), Rules(policy=PolicyName.FIXED))
    fixed.run(100.0)
    fixed.offers = ()
    fixed.run(400.0)
    buffered = FleetWorld((offer(max=2, buffer=1, min=1),))
    buffered.run(100.0)
    buffered.submit(1, 100.0)
    buffered.run(100.0)
    buffered.offers = (offer(max=1, min=1),)
    buffered.run(10.0)
    buffered.rules = Rules(usd_per_hour_max=0.5)
    buffered.run(10.0)
    return [busy, refused, changing, impatient, fixed, buffered]


def test_every_reason_and_notice_comes_up_and_has_a_sentence() -> None:
    found = worlds()
    actions = [action for world in found for action in world.log]
    notices = [n for world in found for decision in world.decisions for n in decision.notices]
    none = View(demand=(demand(2, request=replace(demand(1).request, memory_mib=90_000)),))
    notices += decide(none, Offers(offers=(offer(),)), Memory(), BEGIN_S).notices
    assert {action.reason for action in actions} == set(Reason)
    assert {type(action) for action in actions} == set(get_args(Action))
    assert {notice.code for notice in notices} == set(NoticeCode)
    for text in (*map(action_text, actions), *map(notice_text, notices)):
        assert "{" not in text


def test_sentences() -> None:
    values = {"more": 2, "needed": 2, "floor": 0, "start_s": 60.0}
    start = Start(offer="a10g", size=3, reason=Reason.DEMAND, values=values)
    assert action_text(start) == "a10g: start 2 (3 in all): waiting requests need 2 more"
    drain = Drain(host="h", reason=Reason.IDLE, values={"pool": "a10g", "idle_s": 300.0})
    assert action_text(drain) == "h: drain: without a lease for 5 min"


def test_hosts_of_an_offer_that_was_removed_are_drained_and_stopped() -> None:
    world = FleetWorld((offer(group="asg-1"),))
    world.submit(1)
    world.run(100.0)
    kept = world.memory
    assert groups_of(Offers(offers=()), kept) == {"asg-1": "a10g"}
    world.offers = ()
    actions = world.run(900.0)
    assert [type(one) for one in actions] == [Drain, Stop]
    assert actions[0].reason is Reason.RETIRED
    assert groups_of(Offers(offers=()), world.memory) == {}


def test_memory_is_kept_in_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = MemoryFile(tmp_path / "memory.json")
    assert file.read(Rules()) == Memory()
    memory = Memory(pools={"a": PoolMemory(starts_s=(3.0,), group="g")}, month="2026-11")
    file.keep(memory)
    assert MemoryFile(tmp_path / "memory.json").read(Rules()) == memory
    (tmp_path / "memory.json").write_text("{")
    assert file.read(Rules()) == Memory()
    assert "cannot be read" in caplog.text
    missing = MemoryFile(tmp_path / "missing/memory.json")
    missing.keep(memory)
    assert "cannot be kept" in caplog.text
    assert MemoryFile(None).read(Rules()) == Memory()


def test_a_month_that_nothing_keeps_is_refused(tmp_path: Path) -> None:
    """Without a file it would be counted from zero at each start."""
    guarded, file = Rules(usd_per_month_max=10.0), tmp_path / "memory.json"
    with pytest.raises(AppError, match="give --memory FILE"):
        MemoryFile(None).check(guarded)
    assert MemoryFile(None).read(guarded) == Memory(), "to look at"
    assert MemoryFile(file).read(guarded) == Memory()
    file.write_text("{")
    with pytest.raises(AppError, match="repair it, or remove it to count the month from zero"):
        MemoryFile(file).read(guarded)
    assert file.read_text() == "{"


def test_states_of_hosts_for_people() -> None:
    states = (None, HostState.UP, HostState.DRAINED, HostState.LOST)
    hosts = [Host(id=str(n), pool="p", state=one) for n, one in enumerate(states)]
    hosts += [Host(id="b", pool="p", state=HostState.UP, leases=1)]
    found = host_states(View(hosts=tuple(hosts)), "p")
    assert found == {"starting": 1, "idle": 1, "draining": 1, "lost": 1, "busy": 1}
