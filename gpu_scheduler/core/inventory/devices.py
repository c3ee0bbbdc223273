"""Device classes and states, and feasibility of a request on one device, in one function.

Placement, grants, explanations, infeasibility and the checkers use `fits`. The index (`index.py`)
groups devices by class: a permanent mismatch is found for all of them at once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from corekit.ids import HostId
from corekit.units import WHOLE_PERMILLE, plain_percent
from gpu_scheduler.constraints import (
    DRIVER,
    RUNTIME,
    Constraint,
    Version,
    Versions,
    canonical,
    dotted,
    first_unmet,
    parse_version,
)
from gpu_scheduler.data_names import Offered, first_missing
from gpu_scheduler.model import Device, DeviceKind, Health, HostState, Request, Share, Sharing
from gpu_scheduler.verdicts import NoFit

COMPUTE_PCT_MAX = 100  #: of one device: the maximum sum of its guarantees
COMPUTE_PERMILLE_MAX = WHOLE_PERMILLE


class DeviceClass(NamedTuple):
    """The constant properties of a device; they decide permanent feasibility."""

    kind: DeviceKind
    model: str
    memory_mib: int  #: of the whole device
    gateway: bool  #: False: advisory, watched only by a monitor
    middlewares: tuple[str, ...] | None  #: offered by its host; None = unknown, so any is assumed
    driver: Version
    runtime: Version
    libraries: Versions
    data: Offered | None  #: data sets of its host; None = unknown, so any is assumed
    programs: Offered | None  #: programs of its host; the same
    data_space_mib: int | None  #: of its host, for declared data sets; None = unknown, enough


class DeviceState(NamedTuple):
    """All inputs of `fits` for one device: its class and its availability."""

    device_class: DeviceClass
    host_state: HostState
    health: Health
    free_mib: int
    free_permille: int  #: compute in tenths of a percent
    exclusive: bool  #: allocated exclusively
    shared: bool  #: allocated in shares
    reserved_for: str | None  #: attempt of the head of the queue

    @property
    def memory_mib(self) -> int:
        """The memory of the whole device."""
        return self.device_class.memory_mib

    def equal_but_allocation(self, other: DeviceState) -> bool:
        """True when both differ at most in allocations and reservations."""
        return self[:ALLOCATION_AT] == other[:ALLOCATION_AT]


#: Position of the first field of `DeviceState` that allocations change: `free_mib`.
ALLOCATION_AT: Final = 3


def device_class_of(
    device: Device,
    *,
    gateway: bool,
    middlewares: tuple[str, ...] | None = None,
    data: Offered | None = None,
    programs: Offered | None = None,
    data_space_mib: int | None = None,
) -> DeviceClass:
    return DeviceClass(
        kind=device.kind,
        model=device.model,
        memory_mib=device.memory_mib,
        gateway=gateway,
        middlewares=middlewares,
        driver=parse_version(device.driver),
        runtime=parse_version(device.runtime),
        libraries=tuple(sorted((canonical(name), v) for name, v in device.libraries.items())),
        data=data,
        programs=programs,
        data_space_mib=data_space_mib,
    )


_UP, _OK = HostState.UP, Health.OK
_HOST_REASONS = {
    HostState.DRAINED: NoFit.DRAINED,
    HostState.LOST: NoFit.HOST_LOST,
    HostState.STALE: NoFit.HOST_STALE,
}
_HEALTH_REASONS = {Health.SUSPECT: NoFit.SUSPECT, Health.BAD: NoFit.BAD}


def is_feasible(request: Request, made: DeviceClass) -> bool:
    """True when the device could serve `request` once it is up, healthy and free."""
    return permanent_mismatch(request, made) is None


def permanent_mismatch(request: Request, made: DeviceClass) -> NoFit | None:
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
    if request.requires and unmet_constraint(request, made) is not None:
        return NoFit.VERSION
    if (missing := _missing_content(request, made)) is not None:
        return missing
    if request.memory_max_mib is not None and made.memory_mib > request.memory_max_mib:
        return NoFit.TOO_LARGE
    if request.memory_mib > made.memory_mib:
        return NoFit.MEMORY
    return None


def _missing_content(request: Request, made: DeviceClass) -> NoFit | None:
    """The content that the host of this device does not have, and cannot fetch."""
    if request.data and first_missing(request.data, made.data) is not None:
        return NoFit.DATA
    if request.programs and first_missing(request.programs, made.programs) is not None:
        return NoFit.PROGRAM
    return NoFit.DATA_SPACE if request.data_sets and not _has_space(request, made) else None


def _has_space(request: Request, made: DeviceClass) -> bool:
    """True when its host has space for all declared data sets of the request at once."""
    asked_bytes = sum(one.bytes for one in request.data_sets)
    space_mib = made.data_space_mib
    return space_mib is None or (space_mib > 0 and asked_bytes <= space_mib << 20)


def unmet_constraint(request: Request, made: DeviceClass) -> Constraint | None:
    """The first constraint on versions that the device does not meet."""
    return first_unmet(request.requires, versions_by_name(made))


def versions_by_name(made: DeviceClass) -> Versions:
    """The versions that constraints name: of libraries, driver and runtime."""
    return *made.libraries, (DRIVER, dotted(made.driver)), (RUNTIME, dotted(made.runtime))


def unavailable_reason(device_state: DeviceState) -> NoFit | None:
    """The reason, in host or health, why the device is unavailable now; None when available."""
    if device_state.host_state is _UP and device_state.health is _OK:
        return None
    return _HOST_REASONS.get(device_state.host_state) or _HEALTH_REASONS.get(device_state.health)


def fits(request: Request, device_state: DeviceState, attempt: str | None = None) -> NoFit | None:
    """The first reason why a device in this state cannot serve `request` now; None when it can.

    Permanent reasons come first (see `permanent_mismatch`), then temporary ones.
    """
    return (
        permanent_mismatch(request, device_state.device_class)
        or unavailable_reason(device_state)
        or _not_now(request, device_state)
        or (NoFit.RESERVED_FOR_HEAD if device_state.reserved_for not in (None, attempt) else None)
    )


def _not_now(request: Request, device_state: DeviceState) -> NoFit | None:
    if device_state.exclusive:
        return NoFit.EXCLUSIVE_TAKEN
    if request.sharing is Sharing.EXCLUSIVE:
        return NoFit.SHARED_TAKEN if device_state.shared else None
    whole_mib = device_state.device_class.memory_mib
    asked_mib = request.memory_on_mib(whole_mib) if request.memory_pct else request.memory_mib
    if asked_mib > device_state.free_mib:
        return NoFit.MEMORY
    if 10 * request.compute_guarantee_pct > device_state.free_permille:  # exact for tenths
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
        memory_mib=device.memory_mib if exclusive else request.memory_on_mib(device.memory_mib),
        compute_guarantee_pct=COMPUTE_PCT_MAX
        if exclusive
        else plain_percent(request.compute_guarantee_pct),
        compute_limit_pct=COMPUTE_PCT_MAX
        if exclusive
        else plain_percent(request.compute_limit_pct),
        exclusive=exclusive,
        driver=device.driver,
    )
