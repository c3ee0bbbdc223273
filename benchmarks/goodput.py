"""Goodput of promised runs under load: ours against FIFO, EDF and naive Clockwork.

    goodput_gain_points_min   percent of runs that meet their objectives, ours less the best
                              baseline: the smallest over all loads, of the means over seeds
    goodput_gain_points.LOAD  the same at one load, with its 95 % bootstrap interval over seeds
    goodput_pct.POLICY.LOAD   percent of runs that meet latency and cost
    missed_admitted           runs that were promised by `slo` and missed: 0, as times are as stated
    frontier_ms_p50           the frontier of 8 steps on 4 classes, not cached (ensemble)
    frontier_cached_us_p50    the same from the cache

The load of `simulator/runs/promises.yaml`, ensembles and cascades in equal numbers, at parts of the
capacity: that of a cluster which spreads each step over all its devices. All policies get the same
runs, objectives and draws. FIFO and EDF refuse no run.

With --keep the figures of each seed are added to a file, and those that it has are not computed
again: a run that was stopped continues. A file is of one commit.

    python -m benchmarks.goodput [--json] [--seeds N] [--loads L,…] [--duration S] [--workers N]
                                 [--keep FILE]
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import simulator
from benchmarks import report
from gpu_scheduler.core.admission.slo.frontier import Price, frontier
from simulator.workloads.engine import Engine
from simulator.workloads.measures import Interval, figures, interval
from simulator.workloads.run_file import load_run

RUN = Path(simulator.__file__).parent / "runs" / "promises.yaml"
OURS = "slo"
BASELINES = ("fifo", "edf", "clockwork", "clockwork:cheapest")
LOADS = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
FRONTIERS = 30

Found = Mapping[str, float]
#: Policy, load, seed and duration of one simulation.
Call = tuple[str, float, int, float]


def one_run(policy: str, load: float, seed: int, duration_s: float) -> Found:
    """The figures of one seed; `POLICY:PICK` sets the pick rule."""
    name, _, pick = policy.partition(":")
    run = replace(load_run(RUN), occupancy=load, duration_s=duration_s)
    if pick:
        run = replace(run, parameters={**run.parameters, f"policy.{name}.pick": pick})
    engine = Engine(run, seed, name)
    engine.simulate()
    return figures(engine)


def all_runs(calls: Sequence[Call], workers: int, kept: Path | None = None) -> Mapping[Call, Found]:
    """The figures of all calls; those in the file are read, the others are added to it."""
    found = {} if kept is None else read_kept(kept)
    missing = [call for call in calls if call not in found]
    with ProcessPoolExecutor(max(1, workers)) as pool:
        # the longest first, so that no worker is left alone with one of them
        longest = sorted(missing, key=lambda call: -call[1])
        asked = {pool.submit(one_run, *call): call for call in longest}
        for done in as_completed(asked):
            found[asked[done]] = done.result()
            if kept is not None:
                with kept.open("a") as lines:
                    lines.write(json.dumps([asked[done], found[asked[done]]]) + "\n")
    return found


def read_kept(path: Path) -> dict[Call, Found]:
    """The calls of a file that have figures; a line that was cut off is left out."""
    found: dict[Call, Found] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            (policy, load, seed, duration_s), figures_ = json.loads(line)
            found[policy, load, seed, duration_s] = figures_
    return found


def gain(found: Mapping[str, Sequence[Found]]) -> tuple[Interval, str]:
    """Ours less the baseline with the best mean, by seed, and the name of that one."""
    met = {policy: [one["goodput_pct"] for one in runs] for policy, runs in found.items()}
    best = max(BASELINES, key=lambda policy: statistics.fmean(met[policy]))
    pairs = zip(met[OURS], met[best], strict=True)
    return interval([ours - theirs for ours, theirs in pairs]), best


def frontier_times() -> tuple[float, float]:
    """Seconds of a frontier of 8 steps on 4 classes: computed, and from the cache."""
    feeders = ((), *(((0,),) * 6), tuple(range(1, 7)))
    cold: list[float] = []
    cached: list[float] = []
    for seed in range(FRONTIERS):
        stream = random.Random(seed)
        steps = tuple(tuple(_prices(stream)) for _ in feeders)
        for times in (cold, cached):
            began_s = time.perf_counter()
            frontier(steps, feeders)
            times.append(time.perf_counter() - began_s)
    return statistics.median(cold), statistics.median(cached)


def _prices(stream: random.Random) -> list[Price]:
    """Four classes, none of which is faster and cheaper than another."""
    times = sorted(stream.uniform(0.01, 0.1) for _ in range(4))
    costs = sorted((stream.uniform(1.0, 10.0) for _ in range(4)), reverse=True)
    return list(zip(times, costs, strict=True))


def main() -> None:
    """Run and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--loads", default=",".join(map(str, LOADS)))
    parser.add_argument("--duration", type=float, default=1.0, help="seconds of arrivals")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a file to continue from")
    options = parser.parse_args()
    loads = [float(load) for load in options.loads.split(",")]
    seeds = range(1, options.seeds + 1)
    calls = [
        (policy, load, seed, options.duration)
        for load in loads
        for policy in (OURS, *BASELINES)
        for seed in seeds
    ]
    everything = all_runs(calls, options.workers, options.keep)
    shown: list[report.Figure] = []
    gains: list[float] = []
    missed = 0.0
    for load in loads:
        found = {
            policy: [everything[policy, load, seed, options.duration] for seed in seeds]
            for policy in (OURS, *BASELINES)
        }
        difference, best = gain(found)
        gains.append(difference.mean)
        missed += sum(one["missed"] for one in found[OURS])
        for policy, runs in found.items():
            mean = statistics.fmean(one["goodput_pct"] for one in runs)
            shown.append(report.Figure(f"goodput_pct.{policy}.{load:g}", mean, "%"))
        text = f"{best} in %; 95 % interval {difference.low:.1f} to {difference.high:.1f} points"
        theirs = statistics.fmean(one["goodput_pct"] for one in found[best])
        name = f"goodput_gain_points.{load:g}"
        shown.append(report.Figure(name, difference.mean, "points", text, theirs))
    cold_s, cached_s = frontier_times()
    shown += [
        report.Figure("goodput_gain_points_min", min(gains), "points", target=">= 0"),
        report.Figure("missed_admitted", missed, "runs", target="<= 0"),
        report.Figure("frontier_ms_p50", 1e3 * cold_s, "ms", target="<= 50"),
        report.Figure("frontier_cached_us_p50", 1e6 * cached_s, "µs", target="<= 2000"),
    ]
    report.show("goodput", shown, as_json=options.json)


if __name__ == "__main__":
    main()
