"""The one feasibility function: may this request have a part of this device?

Placing, committing, explaining, judging impossible, and the checkers all ask `fits`. Devices that
look alike to it have one `Shape`, so ten thousand of them cost as much as a few.
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

COMPUTE_PCT_MAX = 100  #: of one device; guarantees never add up to more


class Shape(NamedTuple):
    """All that decides whether a request fits one device; equal devices share one."""

    kind: DeviceKind
    model: str
    memory_mib: int  #: of the whole device
    gateway: bool  #: False: advisory, watched by a monitor alone
    host_state: HostState
    health: Health
    driver: Version
    runtime: Version
    free_mib: int
    free_pct: int
    exclusive: bool  #: lent exclusively
    shared: bool  #: lent in shares
    kept_for: str | None  #: attempt of the head of the queue it is kept for

    @property
    def family(self) -> Shape:
        """Shapes that differ in free memory only are one family; this is its name."""
        return self._replace(free_mib=0)

    def emptied(self) -> Shape:
        """The same device on its best day: up, healthy, nothing lent."""
        return self._replace(
            host_state=HostState.UP, health=Health.OK, free_mib=self.memory_mib,
            free_pct=COMPUTE_PCT_MAX, exclusive=False, shared=False, kept_for=None,
        )  # fmt: skip


def empty_shape(device: Device, *, gateway: bool) -> Shape:
    """A device nobody has anything of, on a host that is up."""
    return Shape(
        kind=device.kind, model=device.model, memory_mib=device.memory_mib, gateway=gateway,
        host_state=HostState.UP, health=device.health, driver=parse_version(device.driver),
        runtime=parse_version(device.runtime), free_mib=device.memory_mib,
        free_pct=COMPUTE_PCT_MAX, exclusive=False, shared=False, kept_for=None,
    )  # fmt: skip


_HOST_REASONS = {
    HostState.DRAINED: NoFit.DRAINED,
    HostState.LOST: NoFit.HOST_LOST,
    HostState.STALE: NoFit.HOST_STALE,
}
_HEALTH_REASONS = {Health.SUSPECT: NoFit.SUSPECT, Health.BAD: NoFit.BAD}


def fits(request: Request, shape: Shape, attempt: str | None = None) -> NoFit | None:
    """None when one device of this shape can serve `request` now; else the first reason why not.

    Reasons no waiting can cure come first (kind, model, gateway, size), then those that pass.
    """
    return (
        _never(request, shape)
        or _HOST_REASONS.get(shape.host_state)
        or _HEALTH_REASONS.get(shape.health)
        or _not_now(request, shape)
        or (NoFit.RESERVED_FOR_HEAD if shape.kept_for not in (None, attempt) else None)
    )


def fits_ever(request: Request, shape: Shape) -> bool:
    """True when a device of this shape could serve `request` once it is up, healthy and free."""
    return fits(request, shape.emptied()) is None


def _never(request: Request, shape: Shape) -> NoFit | None:
    if request.kinds and shape.kind not in request.kinds:
        return NoFit.KIND
    if request.models and shape.model not in request.models:
        return NoFit.MODEL
    if not shape.gateway and not request.advisory:
        return NoFit.ADVISORY
    if request.memory_mib > shape.memory_mib:
        return NoFit.MEMORY
    if request.min_driver and shape.driver < parse_version(request.min_driver):
        return NoFit.DRIVER
    if request.min_runtime and shape.runtime < parse_version(request.min_runtime):
        return NoFit.RUNTIME
    return None


def _not_now(request: Request, shape: Shape) -> NoFit | None:
    if shape.exclusive:
        return NoFit.EXCLUSIVE_TAKEN
    if request.sharing is Sharing.EXCLUSIVE:
        return NoFit.SHARED_TAKEN if shape.shared else None
    if request.memory_mib > shape.free_mib:
        return NoFit.MEMORY
    if request.compute_guarantee_pct > shape.free_pct:
        return NoFit.COMPUTE
    return None


def share_of(request: Request, device: Device, host: str) -> Share:
    """The part of `device` that `request` is promised; an exclusive one is all of it."""
    exclusive = request.sharing is Sharing.EXCLUSIVE
    return Share(
        host=HostId(host), device=device.id, index=device.index, kind=device.kind,
        model=device.model,
        memory_mib=device.memory_mib if exclusive else request.memory_mib,
        compute_guarantee_pct=COMPUTE_PCT_MAX if exclusive else request.compute_guarantee_pct,
        compute_limit_pct=COMPUTE_PCT_MAX if exclusive else request.compute_limit_pct,
        exclusive=exclusive,
    )  # fmt: skip
