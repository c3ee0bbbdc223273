"""The table of warm workers beside that of leases: who gets one, which are evicted, and when."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from corekit.ids import DeviceId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import DeviceKind, EndReason, Share
from gpu_scheduler.protocol.host import Install, WarmLimits
from gpu_scheduler.warm import workload_key
from remote_gpu.host.leases.steps import LeaseStep, LeaseStepKind
from remote_gpu.host.leases.table import LeaseTable
from remote_gpu.host.warm.table import WORKERS_MAX, WarmTable, WarmWorker, card_limits
from tests.installs import install_of, share_of
from tests.lease_overlaps import read_overlaps

D0, D1 = DeviceId("d0"), DeviceId("d1")
MEMORY = {D0: 1000, D1: 500}
NO_LIMITS = WarmLimits(workers_max=100, idle_s_max=1e6, memory_pct_max=100)


def share(device: DeviceId = D0, memory_mib: int = 400, **fields: Any) -> Share:
    return share_of(device, memory_mib=memory_mib, **fields)


def install(number: int, *shares: Share, **fields: Any) -> Install:
    return install_of(number, *(shares or (share(),)), **({"workload": "w"} | fields))


def warm(name: str, memory_mib: int | dict[DeviceId, int] = 300, **fields: Any) -> WarmWorker:
    values: dict[str, Any] = {
        "id": name,
        "tenant": "t",
        "workload": "w",
        "memory_mib": {D0: memory_mib} if isinstance(memory_mib, int) else memory_mib,
        "loading_s": 1.0,
        "idle_since_s": 0.0,
    } | fields
    return WarmWorker(**values)


def table(*workers: WarmWorker) -> LeaseTable:
    leases = LeaseTable(MEMORY, 30.0)
    leases.warm.limits = NO_LIMITS
    for worker in workers:
        leases.warm.keep(worker)
    return leases


def seen(steps: list[LeaseStep]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(step.kind.value, step.lease, step.warm) for step in steps]


@pytest.mark.parametrize(
    ("program", "found"), [(None, "program"), (True, "program"), (False, "newer")]
)
def test_a_lease_gets_a_program_first_and_each_side_its_own_kind(
    program: bool | None, found: str
) -> None:
    workers = warm("older"), warm("newer", idle_since_s=2.0), warm("program", program=True)
    chosen = table(*workers).warm.candidate(install(1), program=program)
    assert chosen is not None
    assert chosen.id == found


def test_a_lane_adopts_no_program_and_a_run_no_worker() -> None:
    leases = table()
    lease = install(1)
    leases.install(lease, 0.0)
    leases.warm.keep(warm("program", 100, program=True))
    assert leases.adopt(lease.lease) == ""
    assert leases.adopt(lease.lease, program=True) == "program"
    leases.warm.keep(warm("worker", 100))
    assert leases.adopt(lease.lease, program=True) == ""


CARD = share(kind=DeviceKind.CUDA)


@pytest.mark.parametrize(
    ("worker", "lease", "suits"),
    [
        (warm("a"), install(1), True),
        (warm("a"), install(1, tenant="u"), False),
        (warm("a"), install(1, workload="v"), False),
        (warm("a"), install(1, workload=None), False),
        (warm("a"), install(1, share(D1)), False),
        (warm("a"), install(1, share(), share(D1)), False),
        (warm("a", 401), install(1), False),
        (warm("a", 400), install(1), True),
        (warm("a", card_limits=card_limits((CARD,))), install(1, CARD), True),
        (
            warm("a", card_limits=card_limits((CARD,))),
            install(1, share(kind=DeviceKind.CUDA, compute_limit_pct=50)),
            False,
        ),
        (
            warm("a", card_limits=card_limits((CARD,))),
            install(1, share(kind=DeviceKind.CUDA, memory_mib=500)),
            False,
        ),
    ],
)
def test_a_worker_suits_its_own_tenant_workload_and_devices(
    worker: WarmWorker, lease: Install, suits: bool
) -> None:
    assert worker.suits(lease) is suits
    ((step, _, given),) = seen(table(worker).install(lease, 0))
    assert (step, given) == ("placed", ("a",) if suits else ())


def test_a_named_worker_first_then_the_last_used_that_is_not_promised() -> None:
    workers = [warm(name, 10, idle_since_s=at_s) for name, at_s in (("a", 1), ("b", 3), ("c", 2))]
    assert seen(table(*workers).install(install(1, residents=("a",)), 0)) == [
        ("placed", "l1", ("a",))
    ]
    assert seen(table(*workers).install(install(1), 0)) == [("placed", "l1", ("b",))]
    assert seen(table(*workers).install(install(1, residents=("gone",)), 0)) == [
        ("placed", "l1", ("b",))
    ]
    leases = table(*workers)
    leases.install(install(1, share(exclusive=True, memory_mib=970), workload=None), 0)
    leases.install(install(2), 0)  # both wait
    leases.install(install(3, residents=("b",)), 0)
    leases.end(LeaseId("l1"), EndReason.DONE)
    assert seen(leases.gone(LeaseId("l1")))[1:] == [
        ("placed", "l2", ("c",)),
        ("placed", "l3", ("b",)),
    ]


def test_a_worker_to_evict_is_not_used() -> None:
    leases = table(warm("a"))
    assert seen(leases.install(install(1, evict=("a",)), 0)) == [("evict", "l1", ("a",))]
    assert leases.warm.residents() == {}
    assert seen(leases.warm_gone("a")) == [("placed", "l1", ())]


def test_named_evictions_are_gone_before_the_lease_is_placed() -> None:
    leases = table(warm("a", 10), warm("b", 10), warm("c", 10))
    lease = install(1, workload=None, evict=("a", "b", "unknown"))
    assert seen(leases.install(lease, 0)) == [("evict", "l1", ("a", "b"))]
    assert leases.warm_gone("a") == []
    assert leases.warm_gone("a") == [], "gone once"
    assert seen(leases.warm_gone("b")) == [("placed", "l1", ())]
    assert leases.warm.ids() == ("c",)


def test_the_cheapest_to_load_again_are_evicted_until_the_lease_fits() -> None:
    leases = table(
        warm("dear", 300, loading_s=9),
        warm("cheap", 300, loading_s=1),
        warm("cheap and used", 300, loading_s=1, idle_since_s=5),
        warm("elsewhere", {D1: 100}, loading_s=0),
    )
    lease = install(1, workload=None)  # 400 of 1000, 900 of which are warm
    assert seen(leases.install(lease, 0)) == [("evict", "l1", ("cheap",))]
    assert leases.warm.memory_on(D0) == [300, 300, 300]
    assert seen(leases.warm_gone("cheap")) == [("placed", "l1", ())]
    whole = install(2, share(D1, 500, exclusive=True), workload=None)
    assert seen(leases.install(whole, 0)) == [("evict", "l2", ("elsewhere",))]


def test_the_worker_that_a_lease_uses_counts_inside_its_share() -> None:
    leases = table(warm("own", 400), warm("other", 600, workload="v", loading_s=0.1))
    assert seen(leases.install(install(1), 0)) == [("placed", "l1", ("own",))]
    assert leases.warm.memory_on(D0) == [600]
    assert leases.warm.memory_on(D0, besides="other") == []


def test_a_lease_does_not_overtake_one_that_awaits_an_eviction() -> None:
    leases = table(warm("a", 900, workload="v"))
    assert seen(leases.install(install(1), 0)) == [("evict", "l1", ("a",))]
    assert leases.install(install(2, share(memory_mib=1)), 0) == []
    assert seen(leases.warm_gone("a")) == [("placed", "l1", ()), ("placed", "l2", ())]


def test_limits_of_number_time_and_memory() -> None:
    leases = table(*(warm(f"w{n}", 100, loading_s=n, idle_since_s=n) for n in range(5)))
    leases.warm.limits = WarmLimits(workers_max=3, idle_s_max=100, memory_pct_max=100)
    assert seen(leases.limit_warm(10)) == [("evict", "", ("w0", "w1"))]
    assert leases.limit_warm(10) == []
    leases.warm.limits = WarmLimits(workers_max=3, idle_s_max=100, memory_pct_max=20)
    assert seen(leases.limit_warm(10)) == [("evict", "", ("w2",))]
    assert seen(leases.limit_warm(103)) == [("evict", "", ("w3",))]
    cheap = warm("new", 150, loading_s=0.5, idle_since_s=103)
    assert seen(leases.warm_kept(cheap, 103)) == [("evict", "", ("new",))], (
        "the new one is cheapest"
    )
    assert leases.warm.ids() == ("w4",)


def test_no_worker_stays_on_a_drained_device() -> None:
    leases = table(warm("w1", {D0: 100}), warm("w2", {D1: 100}), warm("w3", {D0: 1, D1: 1}))
    leases.warm.limits = replace(NO_LIMITS, none_on=(D0, DeviceId("unknown")))
    assert seen(leases.limit_warm(0)) == [("evict", "", ("w1", "w3"))]
    assert leases.warm.ids() == ("w2",)
    assert seen(leases.warm_kept(warm("late", {D0: 1}), 0)) == [("evict", "", ("late",))]


def test_the_workers_of_a_host_are_bounded() -> None:
    leases = table(*(warm(f"w{n}", 0, loading_s=n) for n in range(WORKERS_MAX + 2)))
    leases.warm.limits = replace(NO_LIMITS, workers_max=2 * WORKERS_MAX)
    assert seen(leases.limit_warm(0)) == [("evict", "", ("w0", "w1"))]


def test_memory_for_the_machine_counts_what_already_ends() -> None:
    kept = WarmTable()
    for number in range(3):
        kept.keep(warm(f"w{number}", 100, loading_s=number))
    assert kept.to_free(0) == ()
    assert kept.to_free(150) == ("w0", "w1")
    kept.evict(("w0",))
    assert kept.to_free(150) == ("w1",)
    assert kept.to_free(100) == ()


@pytest.mark.parametrize("named", [True, False])
def test_leases_that_await_a_worker_that_cannot_be_killed_end(named: bool) -> None:
    leases = table(warm("a", 900 if not named else 1, workload="v"))
    leases.install(install(1, evict=("a",) if named else ()), 0)
    leases.install(install(2, share(memory_mib=90)), 0)
    steps = leases.warm_stuck("a", "process 7 cannot be killed")
    assert [(step.kind.value, step.lease, step.reason) for step in steps] == [
        ("closed", "l1", EndReason.DEVICE_BAD),
        ("cut", "l1", None),
        ("placed", "l2", None),
    ]


@pytest.mark.parametrize(
    ("reason", "workload", "keeps"),
    [
        (EndReason.DONE, "w", True),
        (EndReason.RELEASED, "w", True),
        (EndReason.DONE, None, False),
        (EndReason.REVOKED, "w", False),
        (EndReason.SESSION_LOST, "w", False),
        (EndReason.DEVICE_BAD, "w", False),
    ],
)
def test_a_worker_may_stay_after_an_orderly_end(
    reason: EndReason, workload: str | None, keeps: bool
) -> None:
    leases = table()
    leases.install(install(1, workload=workload), 0)
    kill = leases.end(LeaseId("l1"), reason)[-1]
    assert kill.kind is LeaseStepKind.KILL
    assert (kill.keeps is not None) is keeps


def test_residents_are_published_by_a_key_that_hides_tenant_and_workload() -> None:
    kept = table(warm("a"), warm("b", {D0: 1, D1: 2})).warm
    found = kept.residents()
    assert {device: [one.id for one in there] for device, there in found.items()} == {
        D0: ["a", "b"],
        D1: ["b"],
    }
    assert {one.workload for there in found.values() for one in there} == {workload_key("t", "w")}
    kept.evict(("b",))
    assert list(kept.residents()) == [D0]
    assert kept.devices() == (D0, D1), "its memory is still in use"


class Table(RuleBasedStateMachine):
    """Any order of installs, ends, evictions and deaths: nothing is booked twice, and all that
    waits is placed once everything else is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = table()
        self.lines: list[str] = []
        self.dying: list[tuple[LeaseId, Install | None]] = []
        self.evicted: list[str] = []
        self.loading: list[LeaseId] = []
        self.count = 0
        self.placed: dict[str, tuple[str, ...]] = {}

    def log(self, event: str, **fields: Any) -> None:
        line = {"event": event, "at_s": 0.0, "lease": "", "shares": []} | fields
        self.lines.append(json.dumps(line))

    def take(self, steps: list[LeaseStep]) -> None:
        for step in steps:
            shares = [
                {
                    "device": one.device,
                    "memory_mib": one.memory_mib,
                    "compute_guarantee_pct": 0,
                    "exclusive": one.exclusive,
                }
                for one in step.shares
            ]
            self.log(step.kind.value, lease=step.lease, shares=shares, warm=list(step.warm))
            if step.kind is LeaseStepKind.KILL:
                self.dying.append((step.lease, step.keeps))
            elif step.kind is LeaseStepKind.EVICT:
                self.evicted += step.warm
            elif step.kind is LeaseStepKind.LOAD:
                found = self.leases.warm.find(step.warm[0])
                assert found is not None
                self.loading.append(step.lease)
                memory_mib = dict(found.memory_mib)
                self.log("warm_loading", warm=[found.id], memory_mib=memory_mib)

    @rule(
        memory_mib=st.integers(0, 600),
        device=st.sampled_from([D0, D1]),
        workload=st.sampled_from(["w", "v", None]),
        exclusive=st.booleans(),
        ahead=st.booleans(),
        names=st.lists(st.integers(0, 30), max_size=3),
    )
    def install(
        self,
        memory_mib: int,
        device: DeviceId,
        workload: str | None,
        exclusive: bool,
        ahead: bool,
        names: list[int],
    ) -> None:
        self.count += 1
        memory_mib = min(memory_mib, MEMORY[device])
        one = share(device, MEMORY[device] if exclusive else memory_mib, exclusive=exclusive)
        there = self.leases.warm.ids() or ("none",)
        named = tuple(there[number % len(there)] for number in names)
        residents, evict = ((), ()) if ahead else (named[:1], named[1:])
        terms = {"evict": evict, "residents": residents, "ahead": ahead}
        lease = install(self.count, one, workload=workload, **terms)
        self.take(self.leases.install(lease, 0))

    @rule(number=st.integers(0, 1000), reason=st.sampled_from([EndReason.DONE, EndReason.REVOKED]))
    def end(self, number: int, reason: EndReason) -> None:
        there = [entry.lease for entry in self.leases]
        if there:
            self.take(self.leases.end(there[number % len(there)], reason))

    @rule(number=st.integers(0, 1000))
    def book(self, number: int) -> None:
        there = [entry.install for entry in self.leases if entry.install.ahead]
        if there:
            self.take(self.leases.install(replace(there[number % len(there)], ahead=False), 0))

    @rule(number=st.integers(0, 1000))
    def take_back(self, number: int) -> None:
        there = [entry.install for entry in self.leases if not entry.install.ahead]
        if there:
            self.take(self.leases.install(replace(there[number % len(there)], ahead=True), 0))

    @rule(part=st.floats(0, 1))
    def a_load_ends(self, part: float) -> None:
        if not self.loading:
            return
        lease = self.loading.pop(0)
        names = [*self.leases.warm.loading_of(lease)]
        entry = next((one for one in self.leases if one.lease == lease), None)
        taken = None if entry is None else entry.warm
        warm_worker = self.leases.warm.find(names[0]) if names else taken
        if warm_worker is None or warm_worker.loads_for is None:
            return  # it was evicted
        memory_mib = {d: int(mib * part) for d, mib in warm_worker.memory_mib.items()}
        loaded = dataclasses.replace(warm_worker, memory_mib=memory_mib, loads_for=None)
        if names:
            self.log("warm_kept", warm=names, memory_mib=memory_mib)
        self.take(self.leases.warm_loaded(loaded, lease, 0))

    @rule(keeps=st.booleans(), loading_s=st.floats(0, 9), part=st.floats(0, 1))
    def a_process_ends_or_stays(self, keeps: bool, loading_s: float, part: float) -> None:
        if not self.dying:
            return
        lease, kept = self.dying.pop(0)
        if keeps and kept is not None:
            self.count += 1
            memory_mib = {one.device: int(one.memory_mib * part) for one in kept.shares}
            worker = warm(
                f"w{self.count}",
                memory_mib,
                workload=kept.workload,
                loading_s=loading_s,
                models=("m",) * len(kept.shares),
                used=(("onnx", "{}"),),
            )
            self.log("warm_kept", warm=[worker.id], memory_mib=memory_mib)
            self.take(self.leases.warm_kept(worker, 0))
        self.take(self.leases.gone(lease))

    @rule()
    def an_evicted_one_is_gone(self) -> None:
        if self.evicted:
            name = self.evicted.pop(0)
            self.log("warm_gone", warm=[name])
            self.take(self.leases.warm_gone(name))

    @invariant()
    def nothing_is_booked_twice(self) -> None:
        assert read_overlaps(self.lines, {str(k): v for k, v in MEMORY.items()}) == []

    def teardown(self) -> None:
        for _ in range(1000):
            if not (self.evicted or self.dying or self.loading):
                break
            self.a_load_ends(part=1)
            self.an_evicted_one_is_gone()
            self.a_process_ends_or_stays(keeps=False, loading_s=0, part=0)
        waiting = [entry for entry in self.leases if entry.waits]
        if waiting:  # only leases are in their way
            assert any(entry.occupying for entry in self.leases)


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=40)
