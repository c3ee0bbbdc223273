"""The oldest request on the device with the least measured utilisation. Best effort.

Utilisation is what the hosts report, so it is some seconds old, and a lease that was granted since
then does not show in it. Therefore a device counts as busy from `busy_pct` until its utilisation
has fallen to `idle_pct`, and each lease on it that is younger than `settle_s` counts as `lease_pct`
more. A request for a share waits up to `patience_s` for a device that is not busy; then it gets the
least busy one that fits. A request for whole devices does not wait: nothing else runs there. Of
devices with equal utilisation, in steps of ten percent, the one after the last granted is taken.

Bound: among requests of equal size that of first come, first served, and `patience_s` more.
"""

from __future__ import annotations

from itertools import islice

from corekit.ids import DeviceId
from gpu_scheduler.api import (
    GROUPS_COST,
    LARGE,
    Choice,
    Declaration,
    HeldReason,
    Pause,
    Policy,
    PolicyParameter,
    Scalar,
    Values,
    View,
    Waiting,
)
from gpu_scheduler.core.inventory.available import Rank
from gpu_scheduler.model import Sharing

#: Most fitting devices that are compared for one request.
FITTING_MAX = 256
#: The time between two looks at the reports while requests wait for a device that is not busy.
LOOK_S = 1.0
_STEP_PCT = 10
_LAST = "last"  #: the device of the last grant
_BUSY = "busy/"  #: devices that count as busy


class LeastLoaded(Policy):
    """Order: by queue key; device: that with the least measured utilisation."""

    summary = "the oldest request, on the device with the least measured utilisation"
    parameters = (
        PolicyParameter(
            name="busy_pct",
            meaning="utilisation from which a device counts as busy",
            default=80.0,
            at_least=0.0,
            at_most=1e3,
        ),
        PolicyParameter(
            name="idle_pct",
            meaning="utilisation at which a busy device no longer counts as busy",
            default=50.0,
            at_least=0.0,
            at_most=1e3,
        ),
        PolicyParameter(
            name="lease_pct",
            meaning="utilisation that a young lease adds",
            default=25.0,
            at_least=0.0,
            at_most=1e3,
        ),
        PolicyParameter(
            name="settle_s",
            meaning="a lease is young for this long",
            default=5.0,
            at_least=0.0,
            at_most=1e6,
        ),
        PolicyParameter(
            name="patience_s",
            meaning="longest wait of a share for a device that is not busy",
            default=5.0,
            at_least=0.0,
            at_most=1e6,
        ),
    )

    def declare(self, values: Values) -> Declaration:
        patience_s = float(values["patience_s"])
        bound = (
            f"(k + 1) × (L + {patience_s:g} s), with k requests before it, no lease longer than L"
        )
        return Declaration(
            work_conserving=patience_s == 0,
            wait_bound=bound,
            starves=LARGE,
            decision_cost=GROUPS_COST,
        )

    def decide(self, view: View) -> Choice | Pause:
        changed: dict[str, Scalar | None] = {}
        waits = False
        for group in view.fitting_groups():
            waiting = view.first(group)
            devices = view.place(waiting)
            assert devices is not None, f"{waiting.attempt} fits"
            if len(devices) == 1:
                devices = (_least_loaded(view, waiting),)
                changed.update(_flags(view, waiting))
                if _is_busy(view, devices[0]) and _patience_left_s(view, waiting) > 0:
                    waits = True
                    continue
            return Choice(waiting.attempt, devices, {**changed, _LAST: devices[-1]})
        return Pause(until_s=view.at_s + LOOK_S if waits else None, remember=changed)

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        left_s = _patience_left_s(view, waiting)
        if view.place(waiting) is None or left_s <= 0:
            return None
        device = _least_loaded(view, waiting)
        if not _is_busy(view, device):
            return None
        least = f"{view.name(device)} the least ({_load_pct(view, device):.0f} %)"
        return HeldReason(f"every device that fits is busy, {least}", view.at_s + left_s)


def _patience_left_s(view: View, waiting: Waiting) -> float:
    """The time for which a request may still wait for a device that is not busy."""
    if waiting.request.sharing is Sharing.EXCLUSIVE or waiting.request.count > 1:
        return 0.0
    return view.number("patience_s") - view.waits_s(waiting)


def _least_loaded(view: View, waiting: Waiting) -> DeviceId:
    """The device for a request that fits one: not busy, least utilised, next in the cycle."""
    last = DeviceId(view.recalled(_LAST))
    after = view.rank(last) if view.is_known(last) else ("", -1, "")

    def order(device: DeviceId) -> tuple[bool, float, bool, Rank]:
        rank = view.rank(device)
        return _is_busy(view, device), _load_pct(view, device) // _STEP_PCT, rank <= after, rank

    return min(islice(view.fitting(waiting), FITTING_MAX), key=order)


def _load_pct(view: View, device: DeviceId) -> float:
    """The reported utilisation, and what young leases are expected to add."""
    settle_s = view.number("settle_s")
    young = sum(view.wall_s - lease.granted_s < settle_s for lease in view.leases(device))
    usage = view.state.inventory.devices[device].usage
    reported_pct = 0 if usage is None else usage.utilisation_pct
    return reported_pct + young * view.number("lease_pct")


def _is_busy(view: View, device: DeviceId) -> bool:
    """True from `busy_pct` until the load is `idle_pct` or less."""
    load_pct = _load_pct(view, device)
    was_busy = _BUSY + device in view.memory
    return load_pct >= view.number("busy_pct") or (was_busy and load_pct > view.number("idle_pct"))


def _flags(view: View, waiting: Waiting) -> dict[str, Scalar | None]:
    """The changes of the flags of busy devices, among those that fit and those that are gone."""
    changed: dict[str, Scalar | None] = {
        name: None
        for name in view.memory
        if name.startswith(_BUSY) and not view.is_known(name.removeprefix(_BUSY))
    }
    for device in islice(view.fitting(waiting), FITTING_MAX):
        changed[_BUSY + device] = True if _is_busy(view, device) else None
    return changed


POLICY = LeastLoaded()
