"""Isolation and elasticity of shares, in the shape of KNIX's sections 7.3 and 7.4.

    share_error_points   2, 4, 6, 8 equal tenants, endless small matrix products: how far the worst
                         mean is from its share (KNIX, for 2, 4 and 8: 0.58 points)
    deviation_points_8   standard deviation of the means of 8 (KNIX, section 7.3: below 0.13)
    spread_points_8      between the largest and the smallest of them
    work_spread_points_8 the same, counted in products, whose durations differ between processes
    swing_points_N       how far a tenant's part of one second was from its share, at most
    memory_swing_pct_N   between the most and the least memory of a tenant's worker, of its mean
    time_ratio_N         the time of a tenant's work, over that of the same work alone
    small_gain_pct       a 10 % tenant with 6.50 s of work from 0 s, a 90 % tenant with 6.42 s from
                         0.7 s on (KNIX's times / 100): what the small one gains over a fixed share
    large_penalty_pct    what the large one loses against a fixed share (KNIX: 80 and 15)
    utilisation          device-seconds of both over the time from the first to the last

The device is the first core, and a device-second is a processor second of a tenant's worker, as
KNIX's is one of the card's busy time: shares, works and utilisation are all counted in them. (Works
counted in products against the rate of a tenant alone would count its idle time between two calls
as the device's: a rate that is a fifth too low, and so a utilisation above 1.) Time in which other
programs have the first core is left out. Tenants are processes on the last core, and
all do the same operation.

    python -m benchmarks.remote_gpu.sharing [--json] [--seconds S]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks import report
from benchmarks.processes import workspace
from benchmarks.remote_gpu.host import Host, processor_s
from remote_gpu.host.workers.worker import private_bytes

_LEAD_S = 3.0  #: eight interpreters start on one core
_TAIL_S = 0.3  #: for reading the clocks
_POLL_S = 0.002  #: between two readings of the clocks of a tenant with a given work
_LONGEST_S = 120.0  #: for the works of both tenants
SMALL_WORK_S, LARGE_WORK_S, LARGE_START_S = 6.50, 6.42, 0.7


class Tenant:
    """A lease and the process that uses it."""

    def __init__(self, host: Host, guarantee_pct: float, core: int, *arguments: str) -> None:
        session = host.session(guarantee_pct, memory_mib=96)
        self.session = session
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.remote_gpu.tenant", *arguments],
            env=os.environ | session.environment(),
            stdout=subprocess.PIPE,
        )
        os.sched_setaffinity(self._process.pid, {core})

    def result(self) -> dict[str, float]:
        """End the lease; returns the tenant's counts."""
        output, _ = self._process.communicate()
        if self._process.returncode != 0:
            raise RuntimeError(f"a tenant failed with {self._process.returncode}")
        self.close()
        found: dict[str, float] = json.loads(output)
        return found

    def stop(self) -> None:
        """End a tenant that still works; its lease continues."""
        if self._process.poll() is not None:
            raise RuntimeError(f"a tenant ended early, with {self._process.returncode}")
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """End the lease."""
        self.session.give_back()
        self.session.close()


TENANTS = (1, 2, 4, 6, 8)  #: as KNIX's Figure 3 has shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the workers: processor seconds and memory by pid."""

    at_s: float
    computed_s: Mapping[int, float]
    memory: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Equal tenants for a while: each one's parts in percent, and work done."""

    computed_pct: Sequence[float]
    work_pct: Sequence[float]
    done: float  #: of a tenant, in the mean
    swing_points: float
    memory_swing_pct: float


def shares(host: Host, tenants: int, core: int, seconds: float) -> Shared:
    start_s = time.monotonic() + _LEAD_S
    # a tenant that ends early would leave its share to the others: all run until the clocks are
    # read
    window = ("--start", str(start_s), "--end", str(start_s + seconds + _TAIL_S))
    guarantee_pct = 1000 // tenants / 10  # a guarantee has one decimal; the rest is lent
    every = [Tenant(host, guarantee_pct, core, *window) for _ in range(tenants)]
    samples = list(_samples(host, start_s, seconds))
    before, after = samples[0].computed_s, samples[-1].computed_s
    spent_s = {pid: after[pid] - before.get(pid, 0.0) for pid in after}
    workers = sorted(spent_s, key=lambda pid: spent_s[pid])[-tenants:]
    done = [tenant.result()["done"] for tenant in every]
    return Shared(
        computed_pct=_percent([spent_s[pid] for pid in workers]),
        work_pct=_percent(done),
        done=statistics.fmean(done),
        swing_points=max(_swing_points(samples, pid, 100 / tenants) for pid in workers),
        memory_swing_pct=max(_memory_swing_pct(samples, pid) for pid in workers),
    )


def _samples(host: Host, start_s: float, seconds: float) -> Iterator[Sample]:
    """One at the start, one each second, one at the end."""
    for at_s in (*(start_s + n for n in range(int(seconds))), start_s + seconds):
        time.sleep(max(0.0, at_s - time.monotonic()))
        computed_s = host.computed_s()
        yield Sample(
            at_s=time.monotonic(),
            computed_s=computed_s,
            memory={pid: private_bytes(pid) for pid in computed_s},
        )


def _swing_points(samples: Sequence[Sample], pid: int, share_pct: float) -> float:
    parts = (
        100 * (late.computed_s[pid] - early.computed_s[pid]) / (late.at_s - early.at_s)
        for early, late in pairwise(samples)
    )
    return max(abs(part - share_pct) for part in parts)


def _memory_swing_pct(samples: Sequence[Sample], pid: int) -> float:
    held = [one.memory[pid] for one in samples]
    return 100 * (max(held) - min(held)) / statistics.fmean(held)


def _percent(parts: list[float]) -> list[float]:
    return [100 * part / sum(parts) for part in parts]


def isolation(host: Host, core: int, seconds: float) -> list[report.Figure]:
    found = {tenants: shares(host, tenants, core, seconds) for tenants in TENANTS}
    error = max(abs(s - 100 / n) for n, one in found.items() for s in one.computed_pct)
    eight = found[8]
    spread, work_spread = (max(of) - min(of) for of in (eight.computed_pct, eight.work_pct))
    deviation = statistics.pstdev(eight.computed_pct)
    return [
        report.Figure("share_error_points", error, "points", target="<= 0.6"),
        report.Figure("deviation_points_8", deviation, "points", target="< 0.13"),
        report.Figure("spread_points_8", spread, "points"),
        report.Figure("work_spread_points_8", work_spread, "points"),
        *(
            figure
            for n in TENANTS[1:]
            for figure in (
                report.Figure(f"swing_points_{n}", found[n].swing_points, "points"),
                report.Figure(f"memory_swing_pct_{n}", found[n].memory_swing_pct, "%"),
                report.Figure(f"time_ratio_{n}", found[1].done / found[n].done, "ratio"),
            )
        ),
    ]


class Device:
    """The clock of the device: seconds in which its core computed for the tenants or was idle.

    Other programs that run on this core take it from all tenants alike, and stop this clock.
    """

    def __init__(self, host: Host, core: int) -> None:
        self._host = host
        self._line = f"cpu{core} "

    def now_s(self) -> float:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        ticks = next(line for line in lines if line.startswith(self._line)).split()
        idle_s = (int(ticks[4]) + int(ticks[5])) / os.sysconf("SC_CLK_TCK")  # with waits for disks
        return sum(self._host.computed_s().values()) + idle_s


class Work:
    """A tenant with a given work, in device-seconds, from a moment of the monotonic clock on."""

    def __init__(self, host: Host, device: Device, pct: int, core: int, start_s: float) -> None:
        window = ("--start", str(start_s), "--end", str(start_s + _LONGEST_S))
        self.tenant = Tenant(host, pct, core, *window)
        self._host = host
        self._device = device
        self._starts_at_s = start_s
        self._started_s = 0.0  #: by the device's clock
        self._before: dict[int, float] = {}

    def begin(self) -> None:
        """Wait for its start, and read the clocks."""
        time.sleep(max(0.0, self._starts_at_s - time.monotonic()))
        self._before, self._started_s = self._host.computed_s(), self._device.now_s()

    def worker(self, others: Container[int] = ()) -> int:
        """The process that computed most since the start."""
        now = self._host.computed_s()
        used = {pid: now[pid] - self._before.get(pid, 0.0) for pid in now if pid not in others}
        return max(used, key=lambda pid: used[pid])

    def finish(self, worker: int, wanted_s: float) -> float:
        """Wait until its worker has computed `wanted_s`, and stop it; returns the device-seconds
        that this took."""
        wanted_s += self._before.get(worker, 0.0)
        while processor_s(worker) < wanted_s:
            if time.monotonic() > self._starts_at_s + _LONGEST_S:
                raise RuntimeError(f"the work does not end within {_LONGEST_S:g} s")
            time.sleep(_POLL_S)
        ended_s = self._device.now_s()
        self.tenant.stop()
        return ended_s - self._started_s


def elasticity(host: Host, cores: Sequence[int]) -> list[report.Figure]:
    device, start_s = Device(host, cores[0]), time.monotonic() + _LEAD_S
    small = Work(host, device, 10, cores[-1], start_s)
    large = Work(host, device, 90, cores[-1], start_s + LARGE_START_S)
    small.begin()
    time.sleep(LARGE_START_S / 2)
    of_small = small.worker()
    large.begin()
    time.sleep(LARGE_START_S / 2)
    large_s = large.finish(large.worker(others=(of_small,)), LARGE_WORK_S)
    small_s = small.finish(of_small, SMALL_WORK_S)
    for work in (small, large):  # only now: a worker that ended would be missing in the clock
        work.tenant.close()
    gain = 100 * (1 - small_s / (SMALL_WORK_S / 0.1))
    penalty = 100 * (large_s / (LARGE_WORK_S / 0.9) - 1)
    utilisation = (SMALL_WORK_S + LARGE_WORK_S) / small_s
    return [
        report.Figure("small_gain_pct", gain, "%", target=">= 79"),
        report.Figure("large_penalty_pct", penalty, "%", target="-2…3"),
        report.Figure("utilisation", utilisation, "ratio", target="0.95…1.02"),
    ]


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=45.0, help="of each count of tenants")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with workspace("sharing") as (stack, folder):
        host = Host(stack, folder, cores[0])
        figures = isolation(host, cores[-1], options.seconds)
        figures += elasticity(host, cores)
    report.show("remote_gpu.sharing", figures, as_json=options.json)


if __name__ == "__main__":
    main()
