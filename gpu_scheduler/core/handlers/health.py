"""Device health: OK → SUSPECT → BAD, and back only through clean reports.

A worse report takes effect at once. SUSPECT: no new leases, live leases continue, and the next
clean report makes it OK. BAD (or no longer reported): its leases end, and it is offered again only
after clean reports for `device_clean_s`; until then it is SUSPECT with the symptom RECOVERING,
which is journalled, so that a restart does not shorten it. Other devices are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.core.inventory.inventory import DeviceEntry, without_resident
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import DETAIL_CHARS_MAX, Device, Health, HostState, Symptom
from gpu_scheduler.protocol import changes as to

_STATIC = ("kind", "model", "index")  #: properties that a share relies on, besides the memory


def assessed(
    known: Mapping[DeviceId, DeviceEntry], reported: Iterable[Device]
) -> tuple[Device, ...]:
    """All devices ever seen on a host, with the health that follows from its report."""
    named = {device.id: device for device in without_resident(reported)}
    missing = (_missing(entry.device) for id_, entry in known.items() if id_ not in named)
    return (*(_assess(known.get(id_), device) for id_, device in named.items()), *missing)


def _assess(known: DeviceEntry | None, reported: Device) -> Device:
    before = None if known is None else known.device
    if before is None or reported.health is Health.BAD or not _was_bad(before):
        return reported
    if reported.health is Health.SUSPECT:
        symptoms = dict.fromkeys((*reported.symptoms, Symptom.RECOVERING))
        return replace(reported, symptoms=tuple(symptoms))
    if before.health is Health.BAD:
        why = before.detail or ", ".join(before.symptoms)
        detail = f"clean, but not for long enough since: {why}"[:DETAIL_CHARS_MAX]
    else:
        detail = before.detail
    return replace(reported, health=Health.SUSPECT, symptoms=(Symptom.RECOVERING,), detail=detail)


def _was_bad(device: Device) -> bool:
    return device.health is Health.BAD or Symptom.RECOVERING in device.symptoms


def _missing(device: Device) -> Device:
    return replace(
        device,
        health=Health.BAD,
        symptoms=(Symptom.MISSING,),
        detail="no longer reported by its host",
    )


def why_leases_end(known: DeviceEntry, now: Device) -> str | None:
    """The reason why the leases of a device end: BAD, or a changed device; None = they continue.

    A changed memory size is accepted while all allocations still fit.
    """
    if now.health is Health.BAD:
        return now.detail or ", ".join(now.symptoms) or "bad"
    for name in _STATIC:
        before, after = getattr(known.device, name), getattr(now, name)
        if before != after:
            return f"{name} changed from {before} to {after}"
    if now.memory_mib < known.allocated_mib:
        return (
            f"has {now.memory_mib} MiB of memory now, but {known.allocated_mib} MiB are allocated"
        )
    return None


def watch(tx: Transaction, entry: DeviceEntry, reported: Device) -> None:
    """Time the clean reports of a recovering device; any other report resets the timer."""
    entry.reported = reported
    if reported.health is not Health.OK or entry.device.health is Health.OK:
        entry.clean_since_s = None
        tx.state.timers.cancel(TimerKind.DEVICE, reported.id)
    elif entry.clean_since_s is None:
        entry.clean_since_s = tx.at_s
        tx.state.timers.arm(TimerKind.DEVICE, reported.id, tx.at_s + tx.budget.device_clean_s)


def clean_long_enough(tx: Transaction, name: DeviceId) -> None:
    """Offer a recovering device again when its timer fires and its host still reports it."""
    entry = tx.state.inventory.devices.get(name)
    if entry is None or entry.reported is None or entry.clean_since_s is None:
        return
    host, clean_s = tx.state.inventory.hosts[entry.host], tx.budget.device_clean_s
    if host.state is not HostState.UP or host.last_seen_s < tx.at_s - clean_s / 2:
        tx.state.timers.arm(TimerKind.DEVICE, name, tx.at_s + clean_s)
        return
    entry.clean_since_s = None
    tx.emit(to.DeviceChanged(device=entry.reported))
    tx.capacity_freed = True
