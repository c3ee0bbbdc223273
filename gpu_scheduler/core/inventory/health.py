"""How far each device may be trusted: OK → SUSPECT → BAD, and back only by a clean check.

A monitor's finding counts at once when it is worse. SUSPECT: nothing new, what runs goes on, and
the next clean finding classes it OK. BAD (or no longer named): its leases end, and clean findings
must have lasted for `device_clean_s` before it is offered again; until then it is SUSPECT with the
symptom RECOVERING, which is journalled, so no restart shortens it. Neighbours are permanent_mismatch touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.core.inventory.inventory import DeviceEntry, without_resident
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import DETAIL_CHARS_MAX, Device, Health, HostState, Symptom
from gpu_scheduler.protocol import changes as to

_STATIC = ("kind", "model", "index")  #: what a share was promised of, beside its memory


def judged(known: Mapping[DeviceId, DeviceEntry], said: Iterable[Device]) -> tuple[Device, ...]:
    """All devices ever seen on a host as they count from now on, given what it says now."""
    named = {device.id: device for device in without_resident(said)}
    missing = (_missing(entry.device) for id_, entry in known.items() if id_ not in named)
    return (*(_assess(known.get(id_), device) for id_, device in named.items()), *missing)


def _assess(known: DeviceEntry | None, said: Device) -> Device:
    before = None if known is None else known.device
    if before is None or said.health is Health.BAD or not _was_bad(before):
        return said
    if said.health is Health.SUSPECT:
        symptoms = dict.fromkeys((*said.symptoms, Symptom.RECOVERING))
        return replace(said, symptoms=tuple(symptoms))
    if before.health is Health.BAD:
        why = before.detail or ", ".join(before.symptoms)
        detail = f"clean, but not for long enough since: {why}"[:DETAIL_CHARS_MAX]
    else:
        detail = before.detail
    return replace(said, health=Health.SUSPECT, symptoms=(Symptom.RECOVERING,), detail=detail)


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
    """It is BAD, or no longer what was promised; None: what runs there goes on.

    Another size of memory that still holds what is promised is only a newer fact.
    """
    if now.health is Health.BAD:
        return now.detail or ", ".join(now.symptoms) or "bad"
    for name in _STATIC:
        before, after = getattr(known.device, name), getattr(now, name)
        if before != after:
            return f"{name} changed from {before} to {after}"
    if now.memory_mib < known.allocated_mib:
        return f"has {now.memory_mib} MiB of memory now, and {known.allocated_mib} are promised"
    return None


def watch(tx: Transaction, entry: DeviceEntry, said: Device) -> None:
    """Time how long a recovering device has been clean; any other finding starts it anew."""
    entry.said = said
    if said.health is not Health.OK or entry.device.health is Health.OK:
        entry.clean_since_s = None
        tx.state.timers.cancel(TimerKind.DEVICE, said.id)
    elif entry.clean_since_s is None:
        entry.clean_since_s = tx.at_s
        tx.state.timers.arm(TimerKind.DEVICE, said.id, tx.at_s + tx.budget.device_clean_s)


def clean_long_enough(tx: Transaction, name: DeviceId) -> None:
    """The timer of a recovering device fired: offer it again, if its host still vouches for it."""
    entry = tx.state.inventory.devices.get(name)
    if entry is None or entry.said is None or entry.clean_since_s is None:
        return
    host, clean_s = tx.state.inventory.hosts[entry.host], tx.budget.device_clean_s
    if host.state is not HostState.UP or host.last_seen_s < tx.at_s - clean_s / 2:
        tx.state.timers.arm(TimerKind.DEVICE, name, tx.at_s + clean_s)
        return
    entry.clean_since_s = None
    tx.emit(to.DeviceChanged(device=entry.said))
    tx.capacity_freed = True
