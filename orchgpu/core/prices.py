"""Prices of functions and devices, and what a second of each costs. Pure arithmetic."""

from __future__ import annotations

from corekit.values import Value

#: Lambda counts memory in units of 1024 MiB and calls them GB.
MIB_PER_GB = 1024
SECONDS_PER_HOUR = 3600.0
#: Least `late_pct`: a quantile of a few learned times is not finer.
LATE_PCT_MIN = 1.0


class Prices(Value):
    """US dollars; the defaults are list prices on demand, x86, us-east-1, as the paper has them."""

    lambda_usd_per_gb_s: float = 0.0000166667
    device_usd_per_hour: float = 0.90  #: EC2 p2.xlarge: one K80 with its host
    as_of: str = "2021"  #: "given": by the caller

    @property
    def device_usd_per_s(self) -> float:
        return self.device_usd_per_hour / SECONDS_PER_HOUR

    def function_usd_per_s(self, memory_mib: int) -> float:
        """Of a function with so much memory."""
        return memory_mib / MIB_PER_GB * self.lambda_usd_per_gb_s

    def job_usd_per_s(self, memory_mib: int, devices: int) -> float:
        """Of a job: its function with so much memory, and whole devices, also where they are
        shared."""
        return self.function_usd_per_s(memory_mib) + devices * self.device_usd_per_s

    def late_pct(self, memory_mib: int, devices: int) -> float | None:
        """The part of functions that should come after their devices are free, in percent.

        One that comes early costs its own seconds until then, one that comes late those of the
        devices. With r, the function's price in that of the devices, this part costs least (the
        newsvendor's critical ratio). None: the wait costs as much as the devices, or more.
        """
        function, of_devices = self.function_usd_per_s(memory_mib), devices * self.device_usd_per_s
        if function >= of_devices:
            return None
        return max(LATE_PCT_MIN, 100.0 * function / (function + of_devices))
