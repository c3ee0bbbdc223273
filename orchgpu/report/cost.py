"""The cost of a job: the function's memory for its time, and its part of a device for as long.

    cpu = memory_gb · lambda_price · cpu_s
    gpu = (memory_gb · lambda_price + device_price / sharers) · gpu_s

`sharers` jobs use the device at the same time. The formula and the prices are those of the paper
on orchGPU (2021), which leaves requests, transfer and storage out, as we do. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable

from corekit.values import Value
from gpu_scheduler.model import JobLease, Share
from orchgpu.core.prices import Prices


class Comparison(Value):
    """The same job without and with a device."""

    cpu_s: float  #: how long the function runs without
    gpu_s: float  #: how long it runs with one, which it holds all that time
    memory_mib: int  #: of the function, both times
    prices: Prices = Prices()

    @property
    def function_usd_per_s(self) -> float:
        return self.prices.function_usd_per_s(self.memory_mib)

    @property
    def device_usd_per_s(self) -> float:
        return self.prices.device_usd_per_s

    @property
    def speed_up(self) -> float:
        return self.cpu_s / self.gpu_s

    @property
    def cpu_usd(self) -> float:
        return self.function_usd_per_s * self.cpu_s

    def gpu_usd(self, sharers: float = 1) -> float:
        """With a device that `sharers` jobs use at once."""
        return (self.function_usd_per_s + self.device_usd_per_s / sharers) * self.gpu_s

    def break_even_speed_up(self, sharers: float = 1) -> float:
        """The speed-up at which a job with a device costs the same."""
        return 1 + self.device_usd_per_s / sharers / self.function_usd_per_s

    @property
    def break_even_sharers(self) -> float | None:
        """The number of sharers at which the cost is the same; None: the device is not faster."""
        if self.speed_up <= 1:
            return None
        return self.device_usd_per_s / (self.function_usd_per_s * (self.speed_up - 1))


def device_seconds(leases: Iterable[JobLease]) -> float:
    """Device-seconds that leases took from others, from their booking to the release of shares.

    A share counts as its guarantee of compute, an exclusive one and one without a guarantee as the
    whole device: what the scheduler could grant to nobody else. Live leases are left out.
    """
    total_s = 0.0
    for lease in leases:
        if lease.freed_s is not None and lease.shares:
            began_s = lease.granted_s if lease.booked_s is None else lease.booked_s
            parts = sum(map(_part, lease.shares)) / len(lease.shares) * lease.share_count
            total_s += (lease.freed_s - began_s) * parts
    return total_s


def _part(share: Share) -> float:
    if share.exclusive or not share.compute_guarantee_pct:
        return 1.0
    return share.compute_guarantee_pct / 100


class UsedTime(Value):
    """Use by jobs: of their function for `held_s`, and of a device for `device_s`."""

    held_s: float
    device_s: float  #: where jobs share a device, each has its part of the time
    memory_mib: int | None  #: of the function; None: not known, its cost is left out
    prices: Prices = Prices()

    @property
    def device_usd(self) -> float:
        return self.prices.device_usd_per_s * self.device_s

    @property
    def function_usd(self) -> float | None:
        if self.memory_mib is None:
            return None
        return self.prices.function_usd_per_s(self.memory_mib) * self.held_s

    @property
    def usd(self) -> float:
        return self.device_usd + (self.function_usd or 0.0)
