"""Health of devices, from what drivers and hosts report. Pure.

BAD: the device computes wrongly or not at all; its leases end. SUSPECT: it gets no new leases until
a report finds it clean. Errors of a user's program (an invalid pointer: Xid 13, 31) are neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from corekit.ids import DeviceId
from corekit.values import Value, replace
from gpu_scheduler.model import Device, DeviceKind, Health, Symptom, Usage

#: Caused by the program on the device, which ends by them: graphics exception, page fault, stopped
#: channel, cleanup after an earlier one, video processor, context switch timeout (NVIDIA's Xid
#: catalogue; NVIDIA's own device plugin for Kubernetes ignores the same ones).
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
#: The device needs a reset or its board a repair: double-bit ECC, failed row remapping, NVLink, off
#: the bus, uncontained ECC, GSP timeout and fault, unrecovered ECC (NVIDIA's Xid catalogue).
FATAL_XIDS = frozenset({48, 64, 74, 79, 95, 119, 120, 140})
#: Memory in use on a device without lease and process, at which it is reported; each host reserves
#: as much of every device.
HELD_MIB_MIN = 512
#: Consecutive polls that must find memory held: drivers free it some time after a process ended.
HELD_POLLS_MIN = 2


class DriverFaults(Value):
    """Faults of one board, as its driver reports them."""

    xids: tuple[int, ...] = ()  #: recent
    uncorrected: int = 0  #: memory errors since the last reset
    remaps_rows: bool = False  #: replaces bad rows by itself (Ampere and later)
    remap_pending: bool = False  #: a row is replaced at the next reset
    remap_failed: bool = False  #: no spare rows are left


def evaluate_device(driver_faults: DriverFaults) -> tuple[Health, tuple[Symptom, ...], str]:
    """Health, symptoms, and a sentence on them."""
    bad: list[tuple[Symptom, str]] = []
    suspect: list[tuple[Symptom, str]] = []
    for xid in driver_faults.xids:
        if xid not in APPLICATION_XIDS:
            (bad if xid in FATAL_XIDS else suspect).append((Symptom.XID, f"Xid {xid}"))
    if driver_faults.remap_failed:
        bad.append((Symptom.ECC, "no spare memory rows are left"))
    if driver_faults.remap_pending:
        suspect.append((Symptom.ECC, "a memory row waits for a reset to be replaced"))
    if driver_faults.uncorrected and not driver_faults.remaps_rows:
        errors = f"{driver_faults.uncorrected} uncorrected memory errors since the last reset"
        bad.append((Symptom.ECC, errors))
    found = (*bad, *suspect)
    symptoms = tuple(dict.fromkeys(symptom for symptom, _ in found))
    health = Health.BAD if bad else Health.SUSPECT if suspect else Health.OK
    return health, symptoms, ", ".join(text for _, text in found)


class DeviceFault(Value):
    """A fault of a device that the host itself found."""

    health: Health
    symptom: Symptom
    detail: str


def with_faults(
    devices: Iterable[Device], faults: Mapping[DeviceId, DeviceFault]
) -> tuple[Device, ...]:
    """The devices with the faults added; the worse health wins."""
    return tuple(
        device if device.id not in faults else _with_fault(device, faults[device.id])
        for device in devices
    )


def _with_fault(device: Device, fault: DeviceFault) -> Device:
    worse = Health.BAD if Health.BAD in (device.health, fault.health) else Health.SUSPECT
    return replace(
        device,
        health=worse,
        symptoms=tuple(dict.fromkeys((*device.symptoms, fault.symptom))),
        detail="; ".join(filter(None, (fault.detail, device.detail)))[:500],
    )


class HeldMemory:
    """Finds memory that outlived its lease: SUSPECT until a poll finds it freed.

    Only for devices whose driver lists their processes (kind `cuda`), and only while they have no
    lease and no process: memory in use then is a leak.
    """

    def __init__(self) -> None:
        self._polls: dict[DeviceId, int] = {}  # consecutive ones that found memory held

    def faults(
        self, devices: Iterable[Device], usage: Iterable[Usage], leased: Collection[DeviceId]
    ) -> dict[DeviceId, DeviceFault]:
        """The faults found by one poll of all devices."""
        figures = {one.device: one for one in usage}
        found: dict[DeviceId, DeviceFault] = {}
        for device in devices:
            now = figures.get(device.id)
            if device.kind is not DeviceKind.CUDA or now is None:
                continue  # not in this poll: its probe reports that
            held = device.id not in leased and not now.processes
            if not held or now.memory_used_mib < HELD_MIB_MIN:
                self._polls.pop(device.id, None)
                continue
            self._polls[device.id] = polls = self._polls.get(device.id, 0) + 1
            if polls >= HELD_POLLS_MIN:
                detail = f"{now.memory_used_mib} MiB in use by no lease and no process"
                found[device.id] = DeviceFault(
                    health=Health.SUSPECT, symptom=Symptom.MEMORY_HELD, detail=detail
                )
        return found
