"""Isolation and elasticity of shares, in the shape of KNIX's sections 7.3 and 7.4.

    share_error_points   2, 4, 8 tenants at 50, 25, 12.5 %, endless small matrix products: how far
                         the worst mean is from its share (KNIX: 0.58 points)
    spread_points_8      between the largest and the smallest of 8 (KNIX, as a standard deviation:
                         0.13)
    work_spread_points_8 the same, counted in products, whose durations differ between processes
    small_gain_pct       a 10 % tenant with 6.50 s of work from 0 s, a 90 % tenant with 6.42 s from
                         0.7 s on (KNIX's times / 100): what the small one gains over a fixed share
    large_penalty_pct    what the large one loses against a fixed share (KNIX: 80 and 15)
    utilisation          work done over the time that it took

The device is the first core: a share is a part of the processor seconds of all tenants' workers, as
KNIX's is one of the card's busy time. Tenants are processes on the last core, and all do the same
operation. A share of 12.5 % is asked as 12: guarantees are whole.

    python -m benchmarks.remote_gpu.sharing [--json] [--seconds S]
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import report
from benchmarks.remote_gpu.host import Host

_LEAD_S = 3.0  #: eight interpreters start on one core
_TAIL_S = 0.3  #: for reading the clocks
SMALL_WORK_S, LARGE_WORK_S, LARGE_START_S = 6.50, 6.42, 0.7


class Tenant:
    """A lease and the process that uses it."""

    def __init__(self, host: Host, guarantee_pct: int, core: int, *arguments: str) -> None:
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
        self.session.give_back()
        self.session.close()
        found: dict[str, float] = json.loads(output)
        return found


def shares(host: Host, tenants: int, core: int, seconds: float) -> tuple[list[float], list[float]]:
    """The part of each of equal tenants in percent: of the computing, and of the work done."""
    start_s = time.monotonic() + _LEAD_S
    # a tenant that ends early would leave its share to the others: all run until the clocks are
    # read
    window = ("--start", str(start_s), "--end", str(start_s + seconds + _TAIL_S))
    every = [Tenant(host, 100 // tenants, core, *window) for _ in range(tenants)]
    time.sleep(max(0.0, start_s - time.monotonic()))
    before = host.computed_s()
    time.sleep(max(0.0, start_s + seconds - time.monotonic()))
    after = host.computed_s()
    computed_s = sorted(after[pid] - before.get(pid, 0.0) for pid in after)[-tenants:]
    return _percent(computed_s), _percent([tenant.result()["done"] for tenant in every])


def _percent(parts: list[float]) -> list[float]:
    return [100 * part / sum(parts) for part in parts]


def isolation(host: Host, core: int, seconds: float) -> list[report.Figure]:
    measured = {tenants: shares(host, tenants, core, seconds) for tenants in (2, 4, 8)}
    error = max(abs(s - 100 / n) for n, (every, _) in measured.items() for s in every)
    spread, work_spread = (max(every) - min(every) for every in measured[8])
    return [
        report.Figure(
            metric="share_error_points",
            value=error,
            unit="points",
            target="<= 0.6",
            met=error <= 0.6,
        ),
        report.Figure(
            metric="spread_points_8",
            value=spread,
            unit="points",
            target="< 0.13",
            met=spread < 0.13,
        ),
        report.Figure(metric="work_spread_points_8", value=work_spread, unit="points"),
    ]


def elasticity(host: Host, core: int, seconds: float) -> list[report.Figure]:
    start_s = time.monotonic() + _LEAD_S
    alone = Tenant(host, 100, core, "--start", str(start_s), "--end", str(start_s + seconds))
    rate = alone.result()["done"] / seconds  # of an unshared device
    start_s = time.monotonic() + _LEAD_S
    later_s = start_s + LARGE_START_S
    small_count, large_count = round(rate * SMALL_WORK_S), round(rate * LARGE_WORK_S)
    small = Tenant(host, 10, core, "--start", str(start_s), "--count", str(small_count))
    large = Tenant(host, 90, core, "--start", str(later_s), "--count", str(large_count))
    large_s = large.result()["finished_s"] - later_s
    small_s = small.result()["finished_s"] - start_s
    gain = 100 * (1 - small_s / (SMALL_WORK_S / 0.1))
    penalty = 100 * (large_s / (LARGE_WORK_S / 0.9) - 1)
    utilisation = (small_count + large_count) / rate / small_s
    return [
        report.Figure(
            metric="small_gain_pct", value=gain, unit="%", target=">= 79", met=gain >= 79
        ),
        report.Figure(
            metric="large_penalty_pct", value=penalty, unit="%", target="<= 3", met=penalty <= 3
        ),
        report.Figure(
            metric="utilisation",
            value=utilisation,
            unit="ratio",
            target=">= 0.95",
            met=utilisation >= 0.95,
        ),
    ]


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=45.0, help="of each count of tenants")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharing-")))
        host = Host(stack, folder, cores[0])
        figures = isolation(host, cores[-1], options.seconds)
        figures += elasticity(host, cores[-1], min(options.seconds, 10.0))
    report.show("remote_gpu.sharing", figures, as_json=options.json)


if __name__ == "__main__":
    main()
