"""Leases that use more of a card's memory than they have: decisions by readings, and the processes
that count as a lease's."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.ids import DeviceId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import DeviceKind, EndReason
from gpu_scheduler.monitor.health import HELD_MIB_MIN
from gpu_scheduler.monitor.ports import DeviceProcess
from remote_gpu.host.devices.excess import MemoryExcess, owner_of
from remote_gpu.host.devices.excess_table import READINGS_MIN, CardUse, ExcessTable, OnExcess
from remote_gpu.host.leases.steps import LeaseStepKind
from remote_gpu.host.leases.table import LeaseTable
from tests.unit.remote_gpu.host.host_parts import D0, Card, install

LEASE, OTHER = LeaseId("l1"), LeaseId("l2")
SHARE_MIB, CONTEXT_MIB = 1000, 600
WITHIN = SHARE_MIB + CONTEXT_MIB
OVER = WITHIN + 1
#: Memory of the lease's processes at each reading (None: no process), and the readings that find an
#: excess.
READINGS: list[tuple[str, list[Sequence[int | None] | None], list[int]]] = [
    ("within", [[WITHIN]] * 3, []),
    ("once", [[OVER], [WITHIN], [OVER], [WITHIN]], []),
    ("two in a row", [[OVER], [OVER]], [1]),
    ("reported once", [[OVER]] * 5, [1]),
    ("again after its end", [[OVER], [OVER], [0], [OVER], [OVER]], [1, 4]),
    ("its processes ended between", [[OVER], None, [OVER], [OVER]], [3]),
    ("a context for each process", [[OVER, CONTEXT_MIB - 1]] * 2, []),
    ("all processes together", [[OVER, CONTEXT_MIB]] * 2, [1]),
    ("never a figure", [[None]] * 3, []),
    ("a reading without a figure between", [[OVER], [None], [OVER]], [2]),
    ("the known figures suffice", [[None, OVER + CONTEXT_MIB]] * 2, [1]),
    ("the known figures do not", [[None, OVER]] * 2, []),
    ("unknown after an excess", [[OVER], [OVER], [None], [OVER]], [1]),
]


def use(used_mib: Sequence[int | None], lease: LeaseId = LEASE, context_mib: int = 600) -> CardUse:
    return CardUse(
        lease=lease,
        device=D0,
        memory_mib=SHARE_MIB,
        context_mib=context_mib,
        used_mib=tuple(used_mib),
    )


@pytest.mark.parametrize(("readings", "found"), [row[1:] for row in READINGS], ids=lambda _: "")
def test_two_readings_in_a_row_find_an_excess(
    readings: list[Sequence[int | None] | None], found: list[int]
) -> None:
    table = ExcessTable()
    excesses = [table.read([] if used is None else [use(used)]) for used in readings]
    assert [number for number, one in enumerate(excesses) if one] == found


def test_the_reason_names_card_figures_and_remedy() -> None:
    table = ExcessTable(readings_min=1)
    [excess] = table.read([use([1700])])
    assert excess.detail == (
        "it used 1700 MiB of d0, as its driver reports: more than its 1000 MiB and 600 MiB for"
        " contexts; request more memory_mib"
    )


def test_a_context_that_was_not_measured_has_the_usual_size() -> None:
    assert use([0], context_mib=0).allowed_mib == SHARE_MIB + HELD_MIB_MIN


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([LEASE, OTHER]), st.integers(0, 4000)), max_size=2),
        max_size=12,
    )
)
def test_a_lease_is_judged_by_its_own_readings(
    readings: list[list[tuple[LeaseId, int]]],
) -> None:
    """No excess below the limit, none without two readings in a row, whatever other leases do."""
    both, alone = ExcessTable(), ExcessTable()
    row = 0
    for reading in readings:
        uses = [use([used], lease) for lease, used in dict(reading).items()]
        own = [one for one in uses if one.lease == LEASE]
        row = row + 1 if own and own[0].sum_mib > own[0].allowed_mib else 0
        found = [one for one in both.read(uses) if one.lease == LEASE]
        assert found == alone.read(own)
        assert bool(found) == (row == READINGS_MIN)


@pytest.fixture
def child() -> Iterator[int]:
    """The process id of a program that a program of this process has started."""
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    begins = f"import subprocess; p = subprocess.Popen({waits!r})"
    outer = f"{begins}; print(p.pid, flush=True); p.wait()"
    command = [sys.executable, "-c", outer]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def test_programs_of_a_worker_are_its_leases(child: int) -> None:
    assert owner_of(child, {os.getpid(): LEASE}) == LEASE
    assert owner_of(os.getpid(), {os.getpid(): LEASE}) == LEASE
    assert owner_of(child, {os.getpgid(child): LEASE}) == LEASE, "a server's group"
    assert owner_of(child, {child + 1: LEASE}) is None
    assert owner_of(2**22 + 1, {os.getpid(): LEASE}) is None, "no such process"


class World:
    """A lease on a card whose worker is this process."""

    def __init__(self, on_excess: OnExcess, memory_mib: int = SHARE_MIB) -> None:
        self.table, self.card = LeaseTable({D0: 8192}, 30.0), Card()
        lease = install(LEASE, kind=DeviceKind.CUDA, memory_mib=memory_mib)
        self.table.install(lease, 0.0)
        self.excess = MemoryExcess(self.table, self.card, lambda _: CONTEXT_MIB << 20, on_excess)

    def read(self, used_mib: int, pid: int = 0, device: DeviceId = D0) -> list[str]:
        """The kinds of the steps after one reading."""
        pid = pid or os.getpid()
        self.card.processes_now = (DeviceProcess(device=device, pid=pid, memory_used_mib=used_mib),)
        self.steps = self.excess.steps({os.getpid(): LEASE})
        return [step.kind.value for step in self.steps]


def test_an_excess_ends_its_lease_with_the_reason(child: int) -> None:
    world = World(OnExcess.END)
    assert world.read(OVER) == []
    assert world.read(OVER, child) == [LeaseStepKind.CLOSED.value, LeaseStepKind.KILL.value]
    assert world.steps[0].reason is EndReason.REVOKED
    assert world.steps[0].detail.startswith(f"it used {OVER} MiB of d0")
    assert world.read(OVER) == [], "it ends already"


@pytest.mark.parametrize(("on_excess", "warnings"), [(OnExcess.WARN, 1), (OnExcess.OFF, 0)])
def test_an_excess_may_be_logged_only(
    on_excess: OnExcess, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(on_excess)
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            assert world.read(OVER) == []
    assert len(caplog.records) == warnings


def test_memory_of_a_card_that_a_lease_does_not_have_is_an_excess() -> None:
    world, foreign = World(OnExcess.END), DeviceId("d1")
    assert world.read(CONTEXT_MIB, device=foreign) == []
    for _ in range(READINGS_MIN - 1):
        assert world.read(CONTEXT_MIB + 1, device=foreign) == []
    assert world.read(CONTEXT_MIB + 1, device=foreign)


def test_a_lease_of_a_whole_card_has_all_of_it() -> None:
    world = World(OnExcess.END)
    entry = world.table.find(LEASE)
    assert entry is not None
    shares = tuple(replace(share, exclusive=True) for share in entry.install.shares)
    entry.install = replace(entry.install, shares=shares)
    for _ in range(3):
        assert world.read(8000) == []


def test_processes_of_no_lease_are_not_counted() -> None:
    world = World(OnExcess.END)
    for _ in range(3):
        assert world.read(OVER, pid=1) == []
