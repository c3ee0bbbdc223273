"""`python -m simulator.failover`: run seeds, print a summary, name the first that fails."""

from __future__ import annotations

import json
import logging
import sys
import time

import click

from simulator.failover.world import Verdict, simulate
from simulator.faults.checkers import Violation


@click.command()
@click.option("--seeds", default=100, show_default=True, help="The number of seeds, from --first.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(seeds: int, first: int, as_json: bool) -> None:
    """Run several schedulers over one log, in steps drawn from a seed.

    Example: python -m simulator.failover --seeds 1000
    """
    logging.disable(logging.CRITICAL)
    started_s = time.monotonic()
    verdicts: list[Verdict] = []
    with click.progressbar(range(first, first + seeds), label="seeds", file=sys.stderr) as bar:
        for seed in bar:
            try:
                verdicts.append(simulate(seed))
            except Violation as violation:
                click.echo(f"\nseed {seed} breaks an invariant: {violation}", err=True)
                click.echo(f"python -m simulator.failover --first {seed} --seeds 1", err=True)
                sys.exit(1)
    summary = {
        "seeds": len(verdicts),
        "epochs": sum(verdict.epochs for verdict in verdicts),
        "overtaken": sum(verdict.overtaken for verdict in verdicts),
        "grants": sum(verdict.grants for verdict in verdicts),
        "items": sum(verdict.items for verdict in verdicts),
        "compactions": sum(verdict.compactions for verdict in verdicts),
        "trimmed": sum(verdict.trimmed for verdict in verdicts),
        "real_s": round(time.monotonic() - started_s, 1),
    }
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo(
        "{seeds} seeds passed: {epochs} epochs, {overtaken} leaders overtaken, {grants} grants, "
        "{items} items, {compactions} compactions, {trimmed} standbys behind them, "
        "in {real_s} s".format(**summary)
    )


if __name__ == "__main__":
    main()
