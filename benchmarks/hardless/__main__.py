"""HARDLESS' experiment through the real daemons, on emulated devices at scaled time.

    rfast_mean_…     successes per second while jobs wait, mean; target: 98 % of Σ slots / ELat
    ready_p50_ms_…   from the grant of a lease to the session of its function, in real milliseconds
    rfast_max_…      the largest of 10 s (paper: around 3 with two GPUs, around 4 with the VPU)
    vpu_jobs         jobs that the VPU ran, without any change at the client
    cold_starts_gpus, cold_starts_all
                     of the phases and the jobs before them, under warm_first: at most one of each
                     workload for each lease that the devices have at a time
    cold_starts_warm_first, cold_starts_fifo
                     of two workloads in turn, one per slot: with a policy that prefers warm slots,
                     and without
    cold_per_switch_fifo  cold starts for each run of another workload on a slot, without it

Two Quadro K600 with two slots each, then a Movidius stick with one slot beside them: devices of
`gpud --emulate` that take the paper's median times (1675 and 1577 ms, spread 30 %). The phases run
through a whole local system: upload, event, orchestrator, lease, function, device, result. The
workloads in turn run through scheduler, host and data plane. All rates are in unscaled seconds.

    python -m benchmarks.hardless [--json] [--plot DIR] [--scale S] [--minutes P0,P1,P2]
        [--rates P0,P1,P2] [--workloads N] [--cold-ms MS] [--events N]
        [--only phases|switches]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.hardless.devices import GPU_SLOTS, GPUS, TestSystem
from benchmarks.hardless.phases import LEASES, Job, Phase, run_phases
from benchmarks.hardless.plots import moments_s, write_plots
from benchmarks.hardless.switches import WORKLOADS, Run, run_switches, switches
from orchgpu.jobs.measures import RFAST_WINDOW_S, latencies
from simulator.workloads.rates import out_of_order, rfast_curve, rfast_max

#: Least part of the ceiling that the mean of RFast must reach.
CEILING_PART = 0.98
#: The paper's maxima are read from its plots; a maximum of 10 s exceeds the mean.
MAXIMA = {"gpus": (2.8, 3.0), "all": (3.4, 3.8)}
COLD_MS = 5000.0  #: of a cold start; the paper states none
POLICIES = ("warm_first", "fifo")
#: Below the figures on the page.
NOTE = (
    "The functions name a workload, policy `warm_first`: a worker is loaded once for each lease "
    "that a device has at a time, four of each, all before the phases. The ceiling counts the "
    "paper's medians; the times that are drawn for these jobs differ a little. The devices are "
    "[emulated](../how-to/hosts.md#emulated-devices): figures of scheduling, not of accelerators."
)


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--plot", type=Path, help="folder for pictures")
    parser.add_argument("--scale", type=float, default=0.5, help="factor of all times")
    parser.add_argument("--minutes", type=_three, default=(2.0, 10.0, 2.0), help="of P0, P1, P2")
    parser.add_argument("--rates", type=_three, default=(1.5, 3.5, 3.5), help="uploads per second")
    parser.add_argument("--cold-ms", type=float, default=COLD_MS, help="loading time in the phases")
    parser.add_argument("--workloads", type=int, default=1, help="of the phases, in turn")
    parser.add_argument("--events", type=int, default=120, help="of the workloads in turn")
    parser.add_argument("--switch-scale", type=float, default=0.1, help="factor of their times")
    parser.add_argument("--only", choices=("phases", "switches"))
    options = parser.parse_args()
    phases = [
        Phase(length_s=60 * minutes, rate_per_s=rate)
        for minutes, rate in zip(options.minutes, options.rates, strict=True)
    ]
    figures: list[report.Figure] = []
    if options.only != "switches":
        runs = {}
        for name in ("gpus", "all"):
            devices = _system(name, options.scale, vpu=name == "all", cold_ms=options.cold_ms)
            _tell(f"phases on {devices.name}", quiet=options.json)
            warm_up, jobs = asyncio.run(
                run_phases(devices, phases, options.workloads, quiet=options.json)
            )
            runs[devices.name] = jobs
            figures += phase_figures(devices, phases, jobs)
            figures += cold_figures(devices, options.workloads, warm_up, jobs)
        if options.plot is not None:
            for path in write_plots(options.plot, runs):
                _tell(f"written to {path}", quiet=options.json)
    if options.only != "phases":
        figures += _switch_figures(options.events, options.switch_scale, quiet=options.json)
    report.show("hardless", figures, as_json=options.json, notes=[NOTE])


def _three(text: str) -> tuple[float, ...]:
    parts = tuple(float(part) for part in text.split(","))
    if len(parts) != 3 or min(parts) < 0:
        raise ValueError(text)
    return parts


def _tell(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def _system(name: str, scale: float, *, vpu: bool = False, cold_ms: float = 0.0) -> TestSystem:
    return TestSystem(name=name, vpu=vpu, cold_ms=cold_ms, time_scale=scale)


def phase_figures(
    devices: TestSystem, phases: Sequence[Phase], jobs: Sequence[Job]
) -> list[report.Figure]:
    """The measures of one run. RFast counts while jobs wait: from P1 to the last upload."""
    ends_s = moments_s(jobs, "REnd")
    begin_s, end_s = phases[0].length_s, sum(phase.length_s for phase in phases)
    curve = rfast_curve(ends_s, begin_s + RFAST_WINDOW_S, end_s)
    mean = statistics.fmean(rate for _, rate in curve) if curve else 0.0
    target = CEILING_PART * devices.ceiling_per_s
    low, high = MAXIMA[devices.name]
    highest = rfast_max(ends_s)
    succeeded = [job for job in jobs if job.succeeded]
    name = devices.name
    figures = [
        report.compared(
            f"rfast_mean_{name}",
            mean,
            "1/s",
            "slots / median ELat of the paper, 1/s",
            devices.ceiling_per_s,
            target=f">= {target:.3f}",
        ),
        report.Figure(f"rfast_max_{name}", highest, "1/s", target=f"{low:g}…{high:g}"),
        report.Figure(f"rsuccess_{name}", len(succeeded), "jobs", target=f">= {len(jobs)}"),
        report.Figure(
            f"moments_out_of_order_{name}",
            sum(bool(out_of_order(job.moments)) for job in succeeded),
            "jobs",
        ),
        *_latency_figures(name, succeeded),
    ]
    if succeeded:
        ready_ms = statistics.median(job.ready_ms for job in succeeded)
        figures.append(report.Figure(f"ready_p50_ms_{name}", ready_ms, "ms"))
    if devices.vpu:
        on_vpu = [job for job in succeeded if job.on_vpu]
        figures.append(report.Figure("vpu_jobs", len(on_vpu), "jobs", target=">= 1"))
    return figures


def cold_figures(
    devices: TestSystem, workloads: int, warm_up: Sequence[Job], jobs: Sequence[Job]
) -> list[report.Figure]:
    """Cold starts of all jobs of one run, those before the phases included."""
    most = workloads * devices.count * LEASES
    during, before = (
        sum(job.loading_ms >= devices.cold_ms / 2 for job in some) if devices.cold_ms else 0
        for some in (jobs, warm_up)
    )
    return [
        report.Figure(
            f"cold_starts_{devices.name}",
            before + during,
            f"of {len(warm_up) + len(jobs)}",
            target=f"<= {most}",
        ),
        report.Figure(f"cold_in_phases_{devices.name}", during, f"of {len(jobs)}"),
    ]


def _latency_figures(name: str, jobs: Sequence[Job]) -> list[report.Figure]:
    figures = []
    for part, chosen in (
        ("gpu", [job for job in jobs if not job.on_vpu]),
        ("vpu", [job for job in jobs if job.on_vpu]),
    ):
        found = [s for job in chosen if (s := latencies(job.moments)["ELat"]) is not None]
        if found:
            median_ms = statistics.median(found) * 1000
            figures.append(report.Figure(f"elat_median_{part}_{name}", median_ms, "ms"))
    for measure in ("RLat", "DLat"):
        found = [s for job in jobs if (s := latencies(job.moments)[measure]) is not None]
        if found:
            figures.append(report.Figure(f"{measure.lower()}_max_{name}", max(found), "s"))
    return figures


def _switch_figures(events: int, scale: float, *, quiet: bool) -> list[report.Figure]:
    devices = _system("switches", scale, cold_ms=COLD_MS)
    slots = GPUS * GPU_SLOTS
    figures: list[report.Figure] = []
    for policy in POLICIES:
        _tell(f"two workloads in turn under {policy}", quiet=quiet)
        runs = run_switches(devices, policy, events, quiet=quiet)
        figures += switch_figures(policy, runs, slots, scale)
    return figures


def switch_figures(
    policy: str, runs: Sequence[Run], slots: int, scale: float
) -> list[report.Figure]:
    """Cold starts, switches and the rate of one policy."""
    cold = sum(run.cold for run in runs)
    changed = switches(runs, GPU_SLOTS)
    warm_first = policy == POLICIES[0]
    most = len(WORKLOADS) * slots
    length_s = (max(r.ended_s for r in runs) - min(r.began_s for r in runs)) / scale
    name = policy.replace("-", "_")
    figures = [
        report.Figure(
            f"cold_starts_{name}",
            cold,
            f"of {len(runs)}",
            target=f"<= {most}" if warm_first else None,
        ),
        report.Figure(f"switches_{name}", changed, f"of {len(runs)}"),
        report.Figure(f"rate_{name}", len(runs) / length_s, "1/s"),
    ]
    if not warm_first:
        figures.append(report.Figure(f"cold_per_switch_{name}", cold / max(1, changed), "ratio"))
    return figures


if __name__ == "__main__":
    main()
