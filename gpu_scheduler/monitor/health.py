"""What speaks against a device, judged from plain facts. Pure.

BAD: it computes wrongly or not at all, its leases end. SUSPECT: nothing new until it looks clean
again. What a user's program does to itself (a wild pointer: Xid 13, 31) says nothing about either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.model import Device, DeviceKind, Health, Symptom, Usage

#: Caused by the program on the device, which ends by them: graphics exception, page fault, stopped
#: channel, cleanup after an earlier one, video processor, context switch timeout (NVIDIA's Xid
#: catalogue; NVIDIA's own device plugin for Kubernetes passes over the same ones).
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
#: The device needs a reset or its board a repair: double-bit ECC, failed row remapping, NVLink, off
#: the bus, uncontained ECC, GSP timeout and fault, unrecovered ECC (NVIDIA's Xid catalogue).
FATAL_XIDS = frozenset({48, 64, 74, 79, 95, 119, 120, 140})
#: Memory in use on a device without lease and process; the host keeps as much back of every device.
HELD_MIB_MIN = 512
#: Looks in a row that must find memory held: a driver frees it some time after the process ended.
HELD_POLLS_MIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFaults:
    """What the driver says against one board."""

    xids: tuple[int, ...] = ()  #: lately
    uncorrected: int = 0  #: memory errors since the last reset
    remaps_rows: bool = False  #: replaces bad rows by itself (Ampere and later)
    remap_pending: bool = False  #: a row is replaced at the next reset
    remap_failed: bool = False  #: no spare rows are left


def evaluate_device(driver_faults: DriverFaults) -> tuple[Health, tuple[Symptom, ...], str]:
    """Health, why, and the same in words."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What the host itself knows against a device."""

    health: Health
    symptom: Symptom
    detail: str


def with_faults(devices: Iterable[Device], faults: Mapping[DeviceId, Fault]) -> tuple[Device, ...]:
    """The devices with what is known against them added; the worse health counts."""
    return tuple(
        device if device.id not in faults else _with_fault(device, faults[device.id])
        for device in devices
    )


def _with_fault(device: Device, fault: Fault) -> Device:
    worse = Health.BAD if Health.BAD in (device.health, fault.health) else Health.SUSPECT
    return replace(
        device,
        health=worse,
        symptoms=tuple(dict.fromkeys((*device.symptoms, fault.symptom))),
        detail="; ".join(filter(None, (fault.detail, device.detail)))[:500],
    )


class HeldMemory:
    """Finds memory that outlived its lease: SUSPECT until a look finds it gone.

    Only devices whose processes are known by the driver are judged (kind `cuda`), and only while no
    lease of ours and no process is on them: then whatever is in use belongs to nobody.
    """

    def __init__(self) -> None:
        self._looks: dict[DeviceId, int] = {}  # in a row that found memory held

    def faults(
        self, devices: Iterable[Device], usage: Iterable[Usage], leased: Collection[DeviceId]
    ) -> dict[DeviceId, Fault]:
        """One look at all devices of a host."""
        figures = {one.device: one for one in usage}
        found: dict[DeviceId, Fault] = {}
        for device in devices:
            now = figures.get(device.id)
            if device.kind is not DeviceKind.CUDA or now is None:
                continue  # not seen at this look: its probe says so
            held = device.id not in leased and not now.processes
            if not held or now.memory_used_mib < HELD_MIB_MIN:
                self._looks.pop(device.id, None)
                continue
            self._looks[device.id] = looks = self._looks.get(device.id, 0) + 1
            if looks >= HELD_POLLS_MIN:
                detail = f"{now.memory_used_mib} MiB in use by no lease and no process"
                found[device.id] = Fault(
                    health=Health.SUSPECT, symptom=Symptom.MEMORY_HELD, detail=detail
                )
        return found
