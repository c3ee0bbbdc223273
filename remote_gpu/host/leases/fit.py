"""Whether shares fit on their devices beside others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corekit.ids import DeviceId
from corekit.units import WHOLE_PERMILLE
from gpu_scheduler.model import Share


def all_fit(
    shares: Iterable[Share],
    held: Iterable[Share],
    memory_mib: Mapping[DeviceId, int],
    used_mib: Mapping[DeviceId, int] | None = None,
) -> bool:
    """Whether each share fits beside those `held`.

    `memory_mib`: of each device; `used_mib`: of it, by what has no share.
    """
    held, used_mib = tuple(held), used_mib or {}
    return all(_fits(share, held, memory_mib, used_mib) for share in shares)


def left_mib(
    shares: Iterable[Share], held: Iterable[Share], memory_mib: Mapping[DeviceId, int]
) -> dict[DeviceId, int]:
    """Memory of the devices of these shares that neither they nor those `held` have."""
    own = tuple(shares)
    left = {share.device: memory_mib.get(share.device, 0) for share in own}
    for share in (*own, *held):
        if share.device in left:
            left[share.device] -= share.memory_mib
    return left


def _fits(
    share: Share,
    all_held: tuple[Share, ...],
    memory_mib: Mapping[DeviceId, int],
    used_mib: Mapping[DeviceId, int],
) -> bool:
    held = [other for other in all_held if other.device == share.device]
    if held and (share.exclusive or any(other.exclusive for other in held)):
        return False
    needed_mib = share.memory_mib + used_mib.get(share.device, 0)
    needed_mib += sum(other.memory_mib for other in held)
    permille = share.compute_guarantee_permille
    permille += sum(other.compute_guarantee_permille for other in held)
    return needed_mib <= memory_mib.get(share.device, 0) and permille <= WHOLE_PERMILLE
