"""Time slices of a device whose calls run to their end."""

from __future__ import annotations

from corekit.ids import LeaseId
from remote_gpu.host.sharing.slices import Begin, Pause, TimeSlices


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
