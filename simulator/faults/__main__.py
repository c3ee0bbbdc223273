"""`python -m simulator.faults`: run seeds, print their outcomes, name the first that fails."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter

import click

from corekit.values import replace
from local_cloud.model.weather import parse_weather
from simulator.faults.checkers import Violation
from simulator.faults.scenario import Scenario, draw
from simulator.faults.seeds import simulate
from simulator.faults.services import Verdict


@click.command()
@click.option("--seeds", default=50, show_default=True, help="How many seeds, from --first on.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Replay just this one and show its scenario.")
@click.option("--weather", metavar="NAME", help="The weather of every seed, such as aws or none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(seeds: int, first: int, seed: int | None, weather: str | None, as_json: bool) -> None:
    """Run the whole system on virtual time under seeded faults.

    Example: python -m simulator.faults --seeds 1000
    """
    logging.disable(logging.CRITICAL)  # faults are part of the scenario: no warnings
    chosen = [seed] if seed is not None else list(range(first, first + seeds))
    if seed is not None and not as_json:
        click.echo(f"scenario of seed {seed}: {scenario(seed, weather)}")
    started_s = time.monotonic()
    verdicts: list[Verdict] = []
    with click.progressbar(chosen, label="seeds", file=sys.stderr) as bar:
        for number in bar:
            try:
                verdicts.append(simulate(number, scenario(number, weather)))
            except Violation as violation:
                click.echo(f"\nseed {number} breaks an invariant: {violation}", err=True)
                again = f"--seed {number}" + (f" --weather {weather}" if weather else "")
                click.echo(f"replay it with: python -m simulator.faults {again}", err=True)
                sys.exit(1)
    _report(verdicts, time.monotonic() - started_s, as_json)


def scenario(seed: int, weather: str | None) -> Scenario:
    """The scenario of a seed, under another weather than its own when one is given."""
    drawn = draw(seed)
    if weather is None:
        return drawn
    return replace(drawn, weather=replace(parse_weather(weather), seed=str(seed)))


def _report(verdicts: list[Verdict], took_s: float, as_json: bool) -> None:
    outcomes: dict[str, int] = {}
    runs: Counter[str] = Counter()
    ahead: Counter[str] = Counter()
    machines: Counter[str] = Counter()
    floors: Counter[str] = Counter()
    for verdict in verdicts:
        for state, count in verdict.outcomes.items():
            outcomes[state] = outcomes.get(state, 0) + count
        runs.update(verdict.runs)
        ahead.update(verdict.ahead)
        machines.update(verdict.machines)
        floors.update(verdict.floors)
    summary = {
        "seeds": len(verdicts),
        "jobs": sum(v.jobs for v in verdicts),
        "outcomes": outcomes,
        "runs": dict(runs),
        "preempted": sum(v.preempted for v in verdicts),
        "ahead": dict(ahead),
        "machines": dict(machines),
        "floors": dict(floors),
        "decisions": sum(v.decisions for v in verdicts),
        "virtual_s": round(sum(v.virtual_s for v in verdicts)),
        "real_s": round(took_s, 1),
        "traces": {str(v.seed): v.trace for v in verdicts},
    }
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo(
        f"{summary['seeds']} seeds passed: {summary['jobs']} jobs {outcomes}, "
        f"{runs.total()} runs {dict(runs)}, "
        f"{summary['preempted']} preempted or withdrawn attempts, "
        f"leases ahead: {summary['ahead']}, machines of fleets: {summary['machines']}, "
        f"warm floors: {summary['floors']}, "
        f"{summary['decisions']} scheduler decisions, {summary['virtual_s']} virtual seconds in "
        f"{summary['real_s']} s"
    )


if __name__ == "__main__":
    main()
