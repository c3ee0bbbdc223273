"""The option `--plots` of commands that simulate."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.workloads import plots


def _check_plots(
    _context: click.Context, _option: click.Parameter, folder: Path | None
) -> Path | None:
    """Refuse plots without matplotlib before anything runs."""
    if folder is not None:
        plots.matplotlib_modules()
    return folder


plots_option = click.option(
    "--plots",
    callback=_check_plots,
    type=click.Path(file_okay=False, path_type=Path),
    help="Write plots into this folder (needs orchgpu[simulate]).",
)
