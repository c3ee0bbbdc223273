"""Figures of a report: throughput, waits, cold starts, utilisation, cost, failures."""

from __future__ import annotations

from collections.abc import Callable

from corekit.values import Value
from orchgpu.core.prices import Prices
from orchgpu.history.hosts import HostUse
from orchgpu.history.measures import quantile
from orchgpu.history.reader import DeviceSpans, FailureCount, HistoryReader, Series, Window
from orchgpu.history.run_uses import WorkflowUse
from orchgpu.history.uses import Use
from orchgpu.report.cost import UsedTime

#: Lengths of a step, in seconds; the first one that gives at most `STEPS` is used.
STEP_LENGTHS_S = (10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 86_400, 7 * 86_400)
STEPS = 100
#: Devices that a report shows with their leases: those used most.
DEVICES_SHOWN = 30


class UseCost(Value):
    """Use of devices by one function and tenant, with its cost."""

    use: Use
    memory_mib: int | None  #: of the function; None: not known
    device_usd: float
    function_usd: float | None

    @property
    def usd(self) -> float:
        return self.device_usd + (self.function_usd or 0.0)


class Totals(Value):
    """Figures of the whole interval; None: nothing to measure."""

    jobs: int  #: that ended
    succeeded: int
    jobs_per_hour: float
    rfast_max: float  #: the largest of a step, in successes per second
    wait_p50_s: float | None  #: from receipt to the grant
    wait_p95_s: float | None
    rlat_p50_s: float | None  #: of successes
    rlat_p95_s: float | None
    cold_starts: int
    warm_starts: int
    utilisation: float | None  #: lent part of the time of all present devices
    devices: int
    usd: float


class Report(Value):
    """A report."""

    window: Window
    totals: Totals
    states: dict[str, int]
    series: Series
    uses: tuple[UseCost, ...]
    workflows: tuple[WorkflowUse, ...]  #: with runs that ended in the interval
    failures: tuple[FailureCount, ...]
    devices: tuple[DeviceSpans, ...]  #: the `DEVICES_SHOWN` used most, by name
    hosts: HostUse | None  #: that come and go; None: there was no pool of them
    prices: Prices

    @property
    def hosts_usd_per_device_h(self) -> float | None:
        """The cost of hosts for each hour in which jobs used a device; None: none was used."""
        device_h = sum(one.use.device_s for one in self.uses) / 3600
        return None if self.hosts is None or device_h <= 0 else self.hosts.usd / device_h


def step_for(window: Window) -> float:
    """The length of a step that suits a window."""
    length_s = window.until_s - window.since_s
    fitting = (float(step) for step in STEP_LENGTHS_S if length_s / step <= STEPS)
    return next(fitting, length_s / STEPS)


def report_of(
    reader: HistoryReader,
    window: Window,
    *,
    prices: Prices,
    memory_of: Callable[[str], int | None],
) -> Report:
    """The report of a window. `memory_of`: the memory of a function."""
    series = reader.series(window, step_for(window))
    uses = tuple(_costs(use, prices, memory_of) for use in reader.uses(window))
    devices, device_count = reader.most_used(window, DEVICES_SHOWN)
    waits_s, rlats_s = _latencies(reader, window)
    succeeded = sum(one.use.succeeded for one in uses)
    hours = max(1e-9, (window.until_s - window.since_s) / 3600)
    parts = [part for part in series.utilisation if part is not None]
    totals = Totals(
        jobs=sum(one.use.jobs for one in uses),
        succeeded=succeeded,
        jobs_per_hour=succeeded / hours,
        rfast_max=max(series.rfast, default=0.0),
        wait_p50_s=quantile(waits_s, 0.5),
        wait_p95_s=quantile(waits_s, 0.95),
        rlat_p50_s=quantile(rlats_s, 0.5),
        rlat_p95_s=quantile(rlats_s, 0.95),
        cold_starts=sum(series.cold_starts),
        warm_starts=sum(series.warm_starts),
        utilisation=_utilisation(reader, window) if parts else None,
        devices=device_count,
        usd=sum(one.usd for one in uses),
    )
    return Report(
        window=window,
        totals=totals,
        states=reader.states(window),
        series=series,
        uses=uses,
        workflows=reader.runs(window),
        failures=reader.failures(window),
        devices=tuple(sorted(devices, key=lambda one: one.name)),
        hosts=reader.hosts(window, series.step_s),
        prices=prices,
    )


def _costs(use: Use, prices: Prices, memory_of: Callable[[str], int | None]) -> UseCost:
    memory_mib = memory_of(use.function) if use.function else None
    used = UsedTime(held_s=use.held_s, device_s=use.device_s, memory_mib=memory_mib, prices=prices)
    return UseCost(
        use=use,
        memory_mib=memory_mib,
        device_usd=used.device_usd,
        function_usd=used.function_usd,
    )


def _utilisation(reader: HistoryReader, window: Window) -> float | None:
    """Of the whole window: one step."""
    return reader.series(window, window.until_s - window.since_s).utilisation[0]


def _latencies(reader: HistoryReader, window: Window) -> tuple[list[float], list[float]]:
    """The waits of all jobs that ended in the window, and RLat of those that succeeded."""
    waits_s: list[float] = []
    rlats_s: list[float] = []
    for job in reader.ended(window):
        if job.received_s is not None and job.reserved_s is not None:
            waits_s.append(max(0.0, job.reserved_s - job.received_s))
        start_s = job.received_s if job.uploaded_s is None else job.uploaded_s
        if job.state == "SUCCEEDED" and start_s is not None and job.ended_s is not None:
            rlats_s.append(job.ended_s - start_s)
    return waits_s, rlats_s
