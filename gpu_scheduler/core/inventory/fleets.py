"""Pools of fleets, and the host of a pool that a request waits for. Not durable.

The scheduler starts no hosts: it knows only what fleets report, for explanations and pages.
"""

from __future__ import annotations

from collections.abc import Iterator

from corekit.ids import DeviceId, SessionId
from corekit.values import replace
from gpu_scheduler.core.inventory.devices import device_class_of, is_feasible
from gpu_scheduler.model import Device, Placement, Request
from gpu_scheduler.protocol.ops import ReportFleet
from gpu_scheduler.protocol.pools import FleetView, PoolView


class Fleets:
    """The newest report of each fleet, while it counts."""

    def __init__(self) -> None:
        #: Session → the times of the report and of its end (monotonic); the newest is last.
        self._reports: dict[SessionId, tuple[float, float, ReportFleet]] = {}

    def put(self, session: SessionId, report: ReportFleet, at_s: float, until_s: float) -> None:
        """Keep a report until then, in place of the one before it; those that are over go."""
        self._reports.pop(session, None)
        self._reports = {name: one for name, one in self._reports.items() if at_s < one[1]}
        self._reports[session] = (at_s, until_s, report)

    def view(self, at_s: float) -> FleetView | None:
        """All pools by name; None: no report counts."""
        live = self._live(at_s)
        if not live:
            return None
        pools = _newest(live)
        notices = dict.fromkeys(text for _, report in live for text in report.notices)
        return FleetView(
            pools=tuple(pool.aged(ago_s) for _, (ago_s, pool) in sorted(pools.items())),
            notices=tuple(notices),
        )

    def fitting(self, request: Request, at_s: float) -> Iterator[PoolView]:
        """The pools whose hosts could serve the request; only these are aged."""
        for ago_s, pool in _newest(self._live(at_s)).values():
            if _fits(request, pool):
                yield pool.aged(ago_s)

    def _live(self, at_s: float) -> list[tuple[float, ReportFleet]]:
        """Ages and reports that count, the newest last."""
        return [
            (at_s - then_s, one)
            for then_s, until_s, one in self._reports.values()
            if at_s < until_s
        ]


def _newest(live: list[tuple[float, ReportFleet]]) -> dict[str, tuple[float, PoolView]]:
    """The newest state of each pool, by its name, with its age."""
    return {pool.name: (ago_s, pool) for ago_s, report in live for pool in report.pools}


def _fits(request: Request, pool: PoolView) -> bool:
    hosts = 1 if request.placement is Placement.SAME_HOST else pool.max
    device = Device(
        id=DeviceId(pool.name),
        index=0,
        kind=pool.kind,
        model=pool.model,
        memory_mib=pool.memory_mib,
    )
    return request.count <= hosts * pool.devices and could_serve(request, device)


def could_serve(request: Request, device: Device) -> bool:
    """True when such a device of a host that has not come fits the request.

    Its middlewares, data, programs and versions are unknown, and assumed.
    """
    if request.models and not device.model:
        return False
    if request.min_driver or request.min_runtime or request.requires:
        request = replace(request, min_driver=None, min_runtime=None, requires=())
    return is_feasible(request, device_class_of(device, gateway=True))
