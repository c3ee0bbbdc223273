"""The metrics of a host's link to the scheduler, in gpud and in ssgm-monitor."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from corekit.metrics import family
from gpu_scheduler.model import Device, Health


@dataclass(slots=True)
class ReportCounts:
    """The reports that a link sent."""

    outcomes: Counter[str] = field(default_factory=Counter)
    acknowledged_at_s: float = field(default_factory=time.monotonic)  #: the newest, or the start

    def acknowledged(self) -> None:
        """Count a report that the scheduler has accepted."""
        self.outcomes["acknowledged"] += 1
        self.acknowledged_at_s = time.monotonic()

    def failed(self) -> None:
        """Count a report that was refused or lost."""
        self.outcomes["failed"] += 1


def monitor_lines(
    host: str, *, registered: bool, reports: ReportCounts, devices: Sequence[Device]
) -> Iterator[str]:
    """The metrics of one host's monitor."""
    yield from family("ssgm_monitor_registered", [((host,), int(registered))])
    outcomes = [((host, name), reports.outcomes[name]) for name in ("acknowledged", "failed")]
    yield from family("ssgm_monitor_reports_total", outcomes)
    age_s = time.monotonic() - reports.acknowledged_at_s
    yield from family("ssgm_monitor_report_age_seconds", [((host,), round(age_s, 3))])
    health = Counter(device.health for device in devices)
    yield from family("ssgm_monitor_devices", [((host, one.value), health[one]) for one in Health])
