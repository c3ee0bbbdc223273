"""Use of devices by the jobs of a function and tenant, summed up from their leases. Pure."""

from __future__ import annotations

from corekit.values import Value
from orchgpu.history.measures import Span, quantile


class Use(Value):
    """Use of devices by the jobs of one function and tenant in a window."""

    function: str
    tenant: str
    jobs: int  #: that ended
    succeeded: int
    leases: int
    cold_starts: int
    warm_starts: int
    held_s: float  #: all leases, from their grants to their ends: the time of functions
    device_s: float  #: time of devices, divided by those who shared each
    wait_p50_s: float | None  #: from receipt to the grant
    wait_p95_s: float | None
    loading_p50_s: float | None  #: of cold starts


class UseSums:
    """Sums of one function and tenant."""

    def __init__(self) -> None:
        self.jobs = self.succeeded = self.leases = self.cold = self.warm = 0
        self.held_s = self.device_s = 0.0
        self.waits_s: list[float] = []
        self.loadings_s: list[float] = []

    def lease(
        self, part: Span | None, device_s: float, loading_s: float | None, waited_s: float
    ) -> None:
        """`waited_s`: by its function, for a device that was not free yet."""
        self.leases += 1
        self.held_s += waited_s + (0.0 if part is None else part[1] - part[0])
        self.device_s += device_s
        if loading_s is not None:
            self.cold += loading_s > 0
            self.warm += loading_s <= 0
            self.loadings_s += [loading_s] if loading_s > 0 else []

    def job(self, state: str, received: float | None, reserved: float | None) -> None:
        self.jobs += 1
        self.succeeded += state == "SUCCEEDED"
        if received is not None and reserved is not None:
            self.waits_s.append(max(0.0, reserved - received))

    def use(self, function: str, tenant: str) -> Use:
        return Use(
            function=function,
            tenant=tenant,
            jobs=self.jobs,
            succeeded=self.succeeded,
            leases=self.leases,
            cold_starts=self.cold,
            warm_starts=self.warm,
            held_s=self.held_s,
            device_s=self.device_s,
            wait_p50_s=quantile(self.waits_s, 0.5),
            wait_p95_s=quantile(self.waits_s, 0.95),
            loading_p50_s=quantile(self.loadings_s, 0.5),
        )
