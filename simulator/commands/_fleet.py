"""`orchgpu simulate fleet`: policies of a fleet on the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from corekit.cli.progress import Bar
from corekit.cli.screen import echo, echo_json, echo_table, json_option
from corekit.cli.table import Column
from orchgpu.fleet.core.model import PolicyName
from simulator.commands._plots import plots_option
from simulator.workloads import output
from simulator.workloads.engine import Engine
from simulator.workloads.experiments import Point, experiment
from simulator.workloads.fleet import with_policy
from simulator.workloads.plots import plot_fleet
from simulator.workloads.run_file import load_run

#: Figure → its column.
_COLUMNS: Mapping[str, str] = {
    "fleet_usd": "USD",
    "fleet_host_h": "HOST h",
    "fleet_hosts_max": "MOST",
    "fleet_starts": "STARTS",
    "requests": "REQUESTS",
    "wait_mean_s": "WAIT s",
    "wait_p50_s": "P50 s",
    "wait_p95_s": "P95 s",
    "wait_max_s": "MAX s",
}


@click.command("fleet")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("policies", nargs=-1, type=click.Choice([policy.value for policy in PolicyName]))
@click.option("--seeds", type=click.IntRange(min=1), help="Number of seeds; else of the file.")
@plots_option
@json_option
def fleet_command(
    file: Path,
    policies: tuple[str, ...],
    seeds: int | None,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Compare the policies of a fleet in cost and waiting.

    `fixed` has all hosts all the time, `tracking` follows the waiting requests, `forecast` also has
    what this hour of the day needed on the days before. FILE has a block `fleet`. The plots have
    hosts, leases and waiting requests of the first seed over time, one for each policy.

    \b
    Example:  orchgpu simulate fleet simulator/runs/fleet-days.yaml
    """
    run = load_run(file)
    names = [PolicyName(policy) for policy in policies] or list(PolicyName)
    points = [Point(policy=name.value, run=with_policy(run, name)) for name in names]
    chosen = range(run.seed, run.seed + (seeds or run.seeds))
    bar = Bar(len(points) * len(chosen), quiet=as_json)
    try:
        results = experiment(points, list(chosen), progress=lambda done: bar.draw(done, " runs"))
    finally:
        bar.clear()
    if plots is not None:
        _plot(points, chosen[0], plots)
    if as_json:
        echo_json({"run": run.name, "policies": [output.result_json(one) for one in results]})
        return
    rows = [(one.point.policy, *(str(one.intervals[name]) for name in _COLUMNS)) for one in results]
    columns = [Column(name=name) for name in ("POLICY", *_COLUMNS.values())]
    echo_table(columns, rows)
    echo(f"{len(chosen)} seeds from {chosen[0]}; ± is half of the 95 % confidence interval")


def _plot(points: Sequence[Point], seed: int, folder: Path) -> None:
    for point in points:
        engine = Engine(point.run, seed)
        jobs = engine.simulate()
        assert engine.fleet is not None, "`with_policy` refuses a run without a fleet"
        path = folder / f"fleet-{point.policy}.svg"
        plot_fleet(engine.fleet.host_spans(), jobs, path, title=f"{point.run.name}: {point.policy}")
        echo(str(path), err=True)
