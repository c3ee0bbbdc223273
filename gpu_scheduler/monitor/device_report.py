"""A host's devices and their warm workers, as messages to the scheduler report them. Pure.

Devices are shortened to fit into one message. Only warm keys have no small limit: a device has up
to 1,024 of 256 characters each. Warm keys are a hint for placement, so some are left out, first
those of the device with the most bytes of keys.

Warm workers are reported as differences. A report that is not acknowledged may have been applied or
not. Its additions are then reported again, and removed again once their workers are gone: both are
idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corekit.decode import encode_json
from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.data_sets import HELD_MAX, HeldData, HeldSet
from gpu_scheduler.model import Device, DeviceResidents, Resident
from gpu_scheduler.protocol.codec import PAGE_BYTES_MAX


def without_excess_keys(
    devices: tuple[Device, ...], bytes_max: int = PAGE_BYTES_MAX
) -> tuple[tuple[Device, ...], int]:
    """The devices with as many warm keys as fit, and the number of keys left out."""
    sizes = [len(encode_json(device)) for device in devices]
    kept = list(devices)
    left_out = 0
    while sum(sizes) > bytes_max:
        longest = max(range(len(kept)), key=lambda at: _bytes_of(kept[at].resident))
        keys = kept[longest].resident
        if not keys:
            break  # the limit of devices bounds what is left
        kept[longest] = replace(kept[longest], resident=keys[: len(keys) // 2])
        left_out += len(keys) - len(keys) // 2
        sizes[longest] = len(encode_json(kept[longest]))
    return tuple(kept), left_out


def _bytes_of(words: tuple[str, ...]) -> int:
    return sum(map(len, words))


class ReportedResidents:
    """The warm workers that were reported, and those of them that are acknowledged."""

    def __init__(self) -> None:
        self._sent: dict[DeviceId, dict[str, Resident]] = {}  # perhaps known to the scheduler
        self._known: dict[DeviceId, dict[str, Resident]] = {}

    def news(self, present: Mapping[DeviceId, Sequence[Resident]]) -> tuple[DeviceResidents, ...]:
        """The change since the last acknowledged report, to be sent now."""
        changes: list[DeviceResidents] = []
        for device in dict.fromkeys((*self._sent, *present)):
            found = {resident.id: resident for resident in present.get(device, ())}
            sent, known = self._sent.setdefault(device, {}), self._known.get(device, {})
            added = tuple(one for name, one in found.items() if known.get(name) != one)
            removed = tuple(name for name in sent if name not in found)
            sent.update((one.id, one) for one in added)
            if added or removed:
                changes.append(DeviceResidents(device=device, added=added, removed=removed))
        return tuple(changes)

    def reported(self, changes: Sequence[DeviceResidents]) -> None:
        """Note that the scheduler has accepted a change."""
        for change in changes:
            known = self._known.setdefault(change.device, {})
            known.update((one.id, one) for one in change.added)
            for name in change.removed:
                known.pop(name, None)
                self._sent.get(change.device, {}).pop(name, None)
            if not self._sent.get(change.device):
                self._sent.pop(change.device, None)
                self._known.pop(change.device, None)

    def doubt(self) -> None:
        """Note that the scheduler may know less: everything present is reported again."""
        self._known.clear()

    def forget(self) -> None:
        """Note that the next report names all, and replaces what the scheduler knows."""
        self._sent.clear()
        self._known.clear()


class ReportedData:
    """The declared data sets that were reported, and those of them that are acknowledged."""

    def __init__(self) -> None:
        self._sent: dict[str, None] = {}  # perhaps known to the scheduler
        self._known: dict[str, int] = {}

    def news(self, present: Mapping[str, int], bytes_per_s: float | None) -> HeldData | None:
        """The change since the last acknowledged report, to be sent now; None = none."""
        new = {key: size for key, size in present.items() if self._known.get(key) != size}
        added = tuple(HeldSet(key=key, bytes=size) for key, size in new.items())[:HELD_MAX]
        removed = tuple(key for key in self._sent if key not in present)[:HELD_MAX]
        self._sent.update((one.key, None) for one in added)
        if not added and not removed:
            return None
        return HeldData(added=added, removed=removed, bytes_per_s=bytes_per_s)

    def reported(self, change: HeldData | None) -> None:
        """Note that the scheduler has accepted a change."""
        if change is not None:
            self._known.update((one.key, one.bytes) for one in change.added)
            for key in change.removed:
                self._known.pop(key, None)
                self._sent.pop(key, None)

    def doubt(self) -> None:
        """Note that the scheduler may know less: everything present is reported again."""
        self._known.clear()
