"""Time slices of leases with a batch process, and of a device whose calls run to their end."""

from __future__ import annotations

import pytest

from corekit.ids import LeaseId
from remote_gpu.host.sharing.slices import GRACE_S, SLICE_S, Begin, DeviceLoad, Pause, TimeSlices
from tests.unit.remote_gpu.host.sharing.test_slices import ONE, TWO, Caller, Play


def test_time_that_a_batch_process_used_counts_as_the_leases_own() -> None:
    """Charged while it was idle: the other lease goes first until it has had as much."""
    table = TimeSlices()
    for lease in (ONE, TWO):
        table.join(lease, 50, 100)
    assert table.charge(LeaseId("unknown"), 1.0, 0.0) == []
    table.charge(ONE, 0.5, 0.0)
    table.ask(TWO, 1, 1.0)
    table.ask(ONE, 2, 1.0)
    now_s, first_s = 1.0, 0.0
    while not first_s:
        now_s += SLICE_S
        for change in table.wake(now_s):
            if isinstance(change, Pause):
                assert change.lease == TWO
                first_s = now_s
        assert now_s < 3.0, "the charged lease waits for ever"
    assert first_s == pytest.approx(1.5, abs=5 * SLICE_S)


def test_a_batch_process_lets_other_leases_have_their_guarantee() -> None:
    """Two leases of a quarter with a batch process of theirs, which also compute on their own,
    beside one lease of a half."""
    quarters, batch, half = [Caller(25), Caller(25)], Caller(50), Caller(50)
    playing = Play([*quarters, batch, half])
    charged_s = 0.0
    for step in range(1, 2001):
        playing.until(step * SLICE_S)
        for number in (0, 1):
            lease = LeaseId(str(number))
            used_s = (batch.used_s - charged_s) / 2
            playing.change(playing.table.charge, lease, used_s, playing.now_s)
        charged_s = batch.used_s
    every = (*quarters, batch, half)
    total_s = sum(caller.used_s for caller in every)
    assert half.used_s / total_s >= 0.48


def test_the_time_of_tokens_is_counted_without_pauses() -> None:
    table = TimeSlices()
    for lease in (ONE, TWO):
        table.join(lease, 50, 100)
    table.ask(ONE, 1, 0.0)
    table.ask(TWO, 1, 0.0)
    paused_s = SLICE_S + GRACE_S
    assert Pause(ONE) in table.wake(paused_s)
    assert table.used_s(ONE, paused_s + 0.005) == pytest.approx(paused_s)
    assert table.used_s(TWO, paused_s + 0.005) == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("width", "asked", "load"),
    [
        (1, {}, DeviceLoad(free=True, slowdown=1.0)),
        (1, {ONE: 3}, DeviceLoad(free=True, slowdown=1.0)),
        (1, {TWO: 1}, DeviceLoad(free=False, slowdown=4.0)),
        (2, {TWO: 1}, DeviceLoad(free=True, slowdown=1.0)),
        (2, {TWO: 2}, DeviceLoad(free=False, slowdown=4.0)),
        (2, {ONE: 1, TWO: 2}, DeviceLoad(free=False, slowdown=4.0)),
    ],
    ids=str,
)
def test_the_load_of_a_device_is_that_of_other_leases(
    width: int, asked: dict[LeaseId, int], load: DeviceLoad
) -> None:
    table = TimeSlices(width)
    table.join(ONE, 25, 100)
    table.join(TWO, 75, 100)
    for lease, tickets in asked.items():
        for ticket in range(tickets):
            table.ask(lease, ticket, 0.0)
    assert table.load(ONE) == load
    table.leave(TWO, 0.1)
    assert table.load(ONE) == DeviceLoad(free=True, slowdown=1.0)
    with pytest.raises(KeyError):
        table.load(TWO)


def test_calls_of_an_uninterruptible_device_run_to_their_end() -> None:
    slices = TimeSlices(2, interruptible=False)
    for number in range(3):
        slices.join(LeaseId(f"lease-{number}"), 33, 100)
        slices.ask(LeaseId(f"lease-{number}"), 1, 0.0)
    assert slices.running == 2
    assert slices.next_wake_s() is None
    assert not [change for change in slices.wake(60.0) if isinstance(change, Pause)]
    begun = slices.done(LeaseId("lease-0"), 1, 60.0)
    assert [change.lease for change in begun if isinstance(change, Begin)] == ["lease-2"]
