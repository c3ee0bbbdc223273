"""Health of devices: which findings count as faults, and which do not."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.ids import DeviceId
from gpu_scheduler.model import Device, DeviceKind, Health, Symptom, Usage
from gpu_scheduler.monitor.health import (
    DeviceFault,
    DriverFaults,
    HeldMemory,
    evaluate_device,
    with_faults,
)


@pytest.mark.parametrize(
    ("faults", "health", "symptoms"),
    [
        (DriverFaults(), Health.OK, ()),
        (DriverFaults(xids=(13, 31, 43)), Health.OK, ()),
        (DriverFaults(xids=(63,)), Health.SUSPECT, (Symptom.XID,)),
        (DriverFaults(xids=(13, 79)), Health.BAD, (Symptom.XID,)),
        (DriverFaults(remap_failed=True, remaps_rows=True), Health.BAD, (Symptom.ECC,)),
        (DriverFaults(remap_pending=True, remaps_rows=True), Health.SUSPECT, (Symptom.ECC,)),
        (DriverFaults(uncorrected=2), Health.BAD, (Symptom.ECC,)),
        (DriverFaults(uncorrected=2, remaps_rows=True), Health.OK, ()),
        (
            DriverFaults(xids=(63, 79), remap_pending=True, remaps_rows=True),
            Health.BAD,
            (Symptom.XID, Symptom.ECC),
        ),
    ],
)
def test_health_follows_from_the_faults_of_the_driver(
    faults: DriverFaults, health: Health, symptoms: tuple[Symptom, ...]
) -> None:
    found, why, words = evaluate_device(faults)
    assert (found, why) == (health, symptoms)
    assert bool(words) is bool(symptoms)


def device(name: str, kind: DeviceKind = DeviceKind.CUDA, **fields: Any) -> Device:
    return Device(id=DeviceId(name), index=0, kind=kind, model="m", memory_mib=1000, **fields)


def used(name: str, mib: int, processes: int = 0) -> Usage:
    id_ = DeviceId(name)
    return Usage(device=id_, memory_used_mib=mib, utilisation_pct=0, processes=processes)


A = DeviceId("a")


def test_leaked_memory_is_reported_from_the_second_poll_on() -> None:
    held = HeldMemory()
    assert held.faults([device("a")], [used("a", 900)], ()) == {}
    found = held.faults([device("a")], [used("a", 900)], ())
    assert (found[A].health, found[A].symptom) == (Health.SUSPECT, Symptom.MEMORY_HELD)
    assert held.faults([device("a")], [used("a", 3)], ()) == {}, "a clean poll clears it"
    assert held.faults([device("a")], [used("a", 900)], ()) == {}, "and it begins anew"


@pytest.mark.parametrize(
    ("one", "figures", "leased"),
    [
        (device("a"), used("a", 900), (A,)),
        (device("a"), used("a", 900, processes=1), ()),
        (device("a"), used("a", 200), ()),
        (device("a", DeviceKind.CPU), used("a", 900), ()),
        (device("a"), used("b", 900), ()),
    ],
)
def test_memory_in_use_with_a_reason(
    one: Device, figures: Usage, leased: tuple[DeviceId, ...]
) -> None:
    held = HeldMemory()
    assert not any(held.faults([one], [figures], leased) for _ in range(4))


def test_the_worse_health_counts() -> None:
    suspect = DeviceFault(health=Health.SUSPECT, symptom=Symptom.HUNG, detail="stuck")
    bad = device("b", health=Health.BAD, symptoms=(Symptom.XID,), detail="Xid 79")
    good, worse, other = with_faults(
        [device("a"), bad, device("c")], {A: suspect, DeviceId("b"): suspect}
    )
    assert (good.health, good.symptoms, good.detail) == (Health.SUSPECT, (Symptom.HUNG,), "stuck")
    assert (worse.health, worse.symptoms) == (Health.BAD, (Symptom.XID, Symptom.HUNG))
    assert worse.detail == "stuck; Xid 79"
    assert other == device("c")
