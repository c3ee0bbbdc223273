"""A load on a simulated cluster; queue policies side by side.

The production scheduler core runs on a virtual clock (`simulator/workloads`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from corekit.cli.groups import CommandGroup
from corekit.cli.progress import Bar
from corekit.cli.screen import echo, echo_json, echo_table, json_option
from corekit.cli.table import Column
from corekit.errors import invalid
from corekit.suggest import one_of_known
from simulator.commands._fleet import fleet_command
from simulator.commands._plots import plots_option
from simulator.workloads import experiments, output, plots
from simulator.workloads.experiments import Point, Result
from simulator.workloads.jobs import Job
from simulator.workloads.model import Run, Timing
from simulator.workloads.run_file import load_run

_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_policy_set = click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="Parameter of the scheduler, as in `ssgm set`; may be repeated.",
)
_start = click.option(
    "--start",
    metavar="SECONDS[:SPREAD][,PCT:SECONDS[:SPREAD]]",
    help="Functions of all jobs start in this median time, and take leases ahead; after the comma,"
    " the part that starts a sandbox, and its time.",
)
_workers = click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=min(4, os.cpu_count() or 1),
    show_default="processors, at most 4",
    help="Processes that run seeds at the same time.",
)
_seeds = click.option("--seeds", type=click.IntRange(1, 10_000), help="Seeds; else of the file.")
_csv = click.option(
    "--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), help="Write a CSV file."
)
_PERCENT = 100
_FIGURE = "wait_mean_s"


class _RunByDefault(CommandGroup):
    """A group whose first argument may be a file: then the command is `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [word for word in args if not word.startswith("-")]
        if words and words[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


class _FileAnywhere(click.Command):
    """A command whose run file may also stand behind the policies."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        file = next((word for word in args if word.endswith((".yaml", ".yml"))), None)
        if file is not None:
            args = [file, *args[: args.index(file)], *args[args.index(file) + 1 :]]
        return super().parse_args(ctx, args)


@click.group("simulate", cls=_RunByDefault)
def command() -> None:
    """Simulate a load on devices with the scheduler's own core, on a virtual clock.

    \b
    Examples:  orchgpu simulate RUN.yaml
               orchgpu simulate compare RUN.yaml fifo sticky --seeds 30
               orchgpu simulate sweep RUN.yaml fifo --occupancy 0.4,0.6,0.8

    RUN.yaml states hosts, workloads and load; see docs/explanation/simulator.md.
    """


@command.command("run")
@_FILE
@click.option("--policy", help="Queue policy; else of the file, else the default.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed; else of the file.")
@_policy_set
@_start
@click.option(
    "--requests",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a line for each request: CSV, or JSON lines for .jsonl.",
)
@plots_option
@json_option
def run_command(
    file: Path,
    policy: str | None,
    seed: int | None,
    given: tuple[str, ...],
    start: str | None,
    requests: Path | None,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Run one seed under one policy.

    \b
    Example:  orchgpu simulate run RUN.yaml --policy sticky --plots out
    """
    run = _with_start(experiments.with_parameters(load_run(file), given), start)
    policy = None if policy is None else experiments.policy_name(policy)
    seed = run.seed if seed is None else seed
    bar = Bar(_PERCENT, quiet=as_json)
    progress = _of_time(bar, run)
    try:
        outcome, jobs = experiments.simulate(run, seed, policy, progress)
    finally:
        bar.clear()
    if requests is not None:
        output.write_requests(jobs, requests)
    if plots is not None:
        _plot(run, {outcome.policy: jobs}, plots)
    if as_json:
        found = {"policy": outcome.policy, "seed": seed, "trace": outcome.trace}
        echo_json({"run": run.name, **found, "figures": dict(outcome.figures)})
        return
    echo_table(output.columns(("POLICY",)), [(outcome.policy, *output.outcome_row(outcome))])
    decisions = int(outcome.figures["decisions"])
    rate = decisions / max(outcome.processor_s, 1e-9)
    echo(f"seed {seed}, trace {outcome.trace}: {decisions} decisions, {rate:.0f} per second")


@command.command("compare", cls=_FileAnywhere)
@_FILE
@click.argument("policies", nargs=-1)
@_seeds
@click.option("--first", type=click.IntRange(min=0), help="The first seed; else of the file.")
@_policy_set
@_start
@_workers
@_csv
@plots_option
@json_option
def compare_command(
    file: Path,
    policies: tuple[str, ...],
    seeds: int | None,
    first: int | None,
    given: tuple[str, ...],
    start: str | None,
    workers: int,
    csv_file: Path | None,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Compare policies on the same requests.

    The table has means over seeds, with 95 % confidence intervals. Without POLICIES all installed
    ones are compared. A policy may have parameters of its own: `sticky:patience_s=10`. A FILE that
    ends in .yaml may also stand behind the policies.

    \b
    Example:  orchgpu simulate compare RUN.yaml fifo sticky sticky:patience_s=10 --seeds 30
    """
    run = _with_start(experiments.with_parameters(load_run(file), given), start)
    points = experiments.points_of(run, policies)
    chosen = _seed_range(run, seeds, first)
    results = _experiment(points, chosen, workers, quiet=as_json)
    if csv_file is not None:
        output.write_results(results, csv_file)
    if plots is not None:
        _plot_compared(results, chosen[0], plots)
    if as_json:
        echo_json({"run": run.name, "policies": [output.result_json(one) for one in results]})
        return
    rows = [(one.point.policy, *output.row_of(one.intervals)) for one in results]
    echo_table(output.columns(("POLICY",)), rows)
    echo(f"{len(chosen)} seeds from {chosen[0]}; ± is half of the 95 % confidence interval")


@command.command("sweep", cls=_FileAnywhere)
@_FILE
@click.argument("policies", nargs=-1)
@click.option("--occupancy", metavar="LIST", help="Part of the devices in use: 0.2,0.4,0.8")
@click.option("--devices", metavar="LIST", help="Devices of the first host: 1,2,4,8")
@click.option("--clients", metavar="LIST", help="Clients of each source: 1,2,4,5,8")
@click.option("--loading", metavar="LIST", help="Factors of all loading times: 0.5,1,2")
@click.option("--execution", metavar="LIST", help="Factors of all execution times: 0.5,1,2")
@_seeds
@_policy_set
@_start
@_workers
@_csv
@plots_option
@click.option("--figure", default=_FIGURE, show_default=True, help="Figure to plot and show.")
@json_option
def sweep_command(
    file: Path,
    policies: tuple[str, ...],
    occupancy: str | None,
    devices: str | None,
    clients: str | None,
    loading: str | None,
    execution: str | None,
    seeds: int | None,
    given: tuple[str, ...],
    start: str | None,
    workers: int,
    csv_file: Path | None,
    plots: Path | None,
    figure: str,
    as_json: bool,
) -> None:
    """Change one quantity and show a figure of each policy over it.

    \b
    Example:  orchgpu simulate sweep RUN.yaml fifo sticky --devices 1,2,4,8 --plots out
    """
    run = _with_start(experiments.with_parameters(load_run(file), given), start)
    swept, values, change = _swept(
        occupancy=occupancy, devices=devices, clients=clients, loading=loading, execution=execution
    )
    base = experiments.points_of(run, policies)
    points = [
        replace(point, run=change(point.run, value), value=value)
        for point in base
        for value in values
    ]
    chosen = _seed_range(run, seeds, None)
    if figure != _FIGURE:
        _check_figure(figure, points[0], chosen[0])
    results = _experiment(points, chosen, workers, quiet=as_json)
    if csv_file is not None:
        output.write_results(results, csv_file, swept)
    if plots is not None:
        _plot_sweep(results, swept, figure, plots)
    if as_json:
        found = [output.result_json(one, swept) for one in results]
        echo_json({"run": run.name, "swept": swept, "points": found})
        return
    _echo_sweep(results, [point.policy for point in base], swept, values, figure)


def _check_figure(figure: str, point: Point, seed: int) -> None:
    """Refuse an unknown figure before the whole experiment: one run has the names of all."""
    known = tuple(experiments.simulate(point.run, seed)[0].figures)
    if figure not in known:
        raise invalid(f"{figure!r} is not a figure{one_of_known(figure, known)}")


def _echo_sweep(
    results: Sequence[Result],
    policies: Sequence[str],
    swept: str,
    values: Sequence[float],
    figure: str,
) -> None:
    echo(f"{figure} over {swept}:")
    rows = [
        (policy, *(str(one.intervals[figure]) for one in results[start : start + len(values)]))
        for policy, start in zip(policies, range(0, len(results), len(values)), strict=True)
    ]
    header = ("POLICY", *(f"{value:g}" for value in values))
    echo_table([Column(name=name) for name in header], rows)


# ---------------------------------------------------------------------- arguments


def _with_start(run: Run, text: str | None) -> Run:
    """The run with a start of all functions, and of those that start a sandbox."""
    if text is None:
        return run
    used, _, new = text.partition(",")
    if not new:
        return experiments.with_start(run, _timing(used))
    part, _, start = new.partition(":")
    (part_pct,) = _numbers("start", part)
    return experiments.with_start(run, _timing(used), part_pct, _timing(start))


def _timing(text: str) -> Timing:
    """`MEDIAN` or `MEDIAN:SPREAD`."""
    median, _, spread = text.partition(":")
    (median_s,), (of_log,) = _numbers("start", median), _numbers("start", spread or "0")
    return Timing(median_s=median_s, spread=of_log)


def _seed_range(run: Run, seeds: int | None, first: int | None) -> range:
    begin = run.seed if first is None else first
    return range(begin, begin + (seeds or run.seeds))


#: What `sweep` changes, by the names of its options.
_CHANGES: dict[str, Callable[[Run, float], Run]] = {
    "occupancy": experiments.with_occupancy,
    "devices": lambda run, value: experiments.with_devices(run, int(value)),
    "clients": lambda run, value: experiments.with_clients(run, int(value)),
    "loading": experiments.with_loading,
    "execution": experiments.with_execution,
}


def _swept(**options: str | None) -> tuple[str, list[float], Callable[[Run, float], Run]]:
    """The swept quantity: its name, its values, and the change that each makes to a run."""
    given = [(name, text) for name, text in options.items() if text is not None]
    if len(given) != 1:
        raise invalid(f"name one of {', '.join(f'--{name}' for name in options)}")
    name, text = given[0]
    return name, _numbers(name, text), _CHANGES[name]


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise invalid(f"--{name} {text!r}: write numbers with commas between them") from None


# ---------------------------------------------------------------------- work


def _of_time(bar: Bar, run: Run) -> Callable[[float], None]:
    """A progress bar over the virtual time of a run."""
    shown = -1

    def progress(now_s: float) -> None:
        nonlocal shown
        done = min(_PERCENT, int(_PERCENT * now_s / max(run.duration_s, 1e-9)))
        if done != shown:
            shown = done
            bar.draw(done, f" % of {run.duration_s:g} s")

    return progress


def _experiment(
    points: Sequence[Point], seeds: range, workers: int, *, quiet: bool
) -> list[Result]:
    bar = Bar(len(points) * len(seeds), quiet=quiet)
    try:
        return experiments.experiment(
            points, seeds, workers=workers, progress=lambda done: bar.draw(done, " runs")
        )
    finally:
        bar.clear()


def _plot(run: Run, jobs: dict[str, list[Job]], folder: Path) -> None:
    for path in plots.plot_run(jobs, experiments.device_names(run), folder):
        echo(f"wrote {path}", err=True)


def _plot_compared(results: Sequence[Result], seed: int, folder: Path) -> None:
    plots.plot_compared(results, folder / "policies.svg")
    echo(f"wrote {folder / 'policies.svg'}", err=True)
    jobs = {one.point.policy: experiments.simulate(one.point.run, seed)[1] for one in results}
    _plot(results[0].point.run, jobs, folder)


def _plot_sweep(results: Sequence[Result], swept: str, figure: str, folder: Path) -> None:
    path = folder / f"{swept}-{figure}.svg"
    plots.plot_sweep(results, swept, figure, path, logarithmic=True)
    echo(f"wrote {path}", err=True)


command.add_command(fleet_command)
