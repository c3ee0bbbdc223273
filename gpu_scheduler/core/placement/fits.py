"""Feasibility of a request on one device, in one function for all uses.

Placement, grants, explanations, infeasibility and the checkers use `fits`; the index of devices
(`index.py`) saves calls with equal results.
"""

from __future__ import annotations

from typing import NamedTuple

from corekit.ids import HostId
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    Health,
    HostState,
    NoFit,
    Request,
    Share,
    Sharing,
)
from gpu_scheduler.versions import Version, parse_version

COMPUTE_PCT_MAX = 100  #: of one device: the maximum sum of its guarantees


class DeviceClass(NamedTuple):
    """The constant properties of a device; they decide permanent feasibility."""

    kind: DeviceKind
    model: str
    memory_mib: int  #: of the whole device
    gateway: bool  #: False: advisory, watched only by a monitor
    middlewares: tuple[str, ...] | None  #: offered by its host; None = unknown, so any is assumed
    driver: Version
    runtime: Version


class DeviceState(NamedTuple):
    """All inputs of `fits` for one device: its `DeviceClass`, then its availability."""

    kind: DeviceKind
    model: str
    memory_mib: int
    gateway: bool
    middlewares: tuple[str, ...] | None
    driver: Version
    runtime: Version
    host_state: HostState
    health: Health
    free_mib: int
    free_pct: int
    exclusive: bool  #: allocated exclusively
    shared: bool  #: allocated in shares
    reserved_for: str | None  #: attempt of the head of the queue

    @property
    def device_class(self) -> DeviceClass:
        return DeviceClass(*self[:7])

    def same_class_as(self, other: DeviceState) -> bool:
        """True when both have the same device class."""
        return self[:7] == other[:7]

    def equal_but_allocation(self, other: DeviceState) -> bool:
        """True when both differ at most in allocations and reservations."""
        return self[:9] == other[:9]


def device_class_of(
    device: Device, *, gateway: bool, middlewares: tuple[str, ...] | None = None
) -> DeviceClass:
    return DeviceClass(
        kind=device.kind,
        model=device.model,
        memory_mib=device.memory_mib,
        gateway=gateway,
        middlewares=middlewares,
        driver=parse_version(device.driver),
        runtime=parse_version(device.runtime),
    )


_UP, _OK = HostState.UP, Health.OK
_HOST_REASONS = {
    HostState.DRAINED: NoFit.DRAINED,
    HostState.LOST: NoFit.HOST_LOST,
    HostState.STALE: NoFit.HOST_STALE,
}
_HEALTH_REASONS = {Health.SUSPECT: NoFit.SUSPECT, Health.BAD: NoFit.BAD}


def fits(request: Request, device_state: DeviceState, attempt: str | None = None) -> NoFit | None:
    """The first reason why a device in this state cannot serve `request` now; None when it can.

    Permanent reasons come first (see `permanent_mismatch`), then temporary ones.
    """
    return (
        permanent_mismatch(request, device_state)
        or unavailable_reason(device_state)
        or _not_now(request, device_state)
        or (NoFit.RESERVED_FOR_HEAD if device_state.reserved_for not in (None, attempt) else None)
    )


def is_feasible(request: Request, made: DeviceClass | DeviceState) -> bool:
    """True when the device could serve `request` once it is up, healthy and free."""
    return permanent_mismatch(request, made) is None


def permanent_mismatch(request: Request, made: DeviceClass | DeviceState) -> NoFit | None:
    """The reason why no device of this class can ever serve `request`; None when one can."""
    if request.kinds and made.kind not in request.kinds:
        return NoFit.KIND
    if request.models and made.model not in request.models:
        return NoFit.MODEL
    offered = made.middlewares
    if request.middleware is not None and offered is not None and request.middleware not in offered:
        return NoFit.MIDDLEWARE
    if not made.gateway and not request.advisory:
        return NoFit.ADVISORY
    if request.min_driver and made.driver < parse_version(request.min_driver):
        return NoFit.DRIVER
    if request.min_runtime and made.runtime < parse_version(request.min_runtime):
        return NoFit.RUNTIME
    if request.memory_max_mib is not None and made.memory_mib > request.memory_max_mib:
        return NoFit.TOO_LARGE
    if request.memory_mib > made.memory_mib:
        return NoFit.MEMORY
    return None


def unavailable_reason(device_state: DeviceState) -> NoFit | None:
    """The reason, in host or health, why the device is unavailable now; None when available."""
    if device_state.host_state is _UP and device_state.health is _OK:
        return None
    return _HOST_REASONS.get(device_state.host_state) or _HEALTH_REASONS.get(device_state.health)


def _not_now(request: Request, device_state: DeviceState) -> NoFit | None:
    if device_state.exclusive:
        return NoFit.EXCLUSIVE_TAKEN
    if request.sharing is Sharing.EXCLUSIVE:
        return NoFit.SHARED_TAKEN if device_state.shared else None
    if request.memory_mib > device_state.free_mib:
        return NoFit.MEMORY
    if request.compute_guarantee_pct > device_state.free_pct:
        return NoFit.COMPUTE
    return None


def share_of(request: Request, device: Device, host: str) -> Share:
    """The share of `device` for `request`; an exclusive one is the whole device."""
    exclusive = request.sharing is Sharing.EXCLUSIVE
    return Share(
        host=HostId(host),
        device=device.id,
        index=device.index,
        kind=device.kind,
        model=device.model,
        memory_mib=device.memory_mib if exclusive else request.memory_mib,
        compute_guarantee_pct=COMPUTE_PCT_MAX if exclusive else request.compute_guarantee_pct,
        compute_limit_pct=COMPUTE_PCT_MAX if exclusive else request.compute_limit_pct,
        exclusive=exclusive,
    )
