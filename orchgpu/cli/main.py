"""The group of all commands, and the exit status of a run."""

from __future__ import annotations

import os
from pathlib import Path

import click

from corekit.cli.groups import CommandGroup
from corekit.cli.program import run_and_exit
from corekit.local_system import HOME_VARIABLE

#: The sections of --help. A command is a file in one of these folders (`corekit.cli.groups`); those
#: of the simulator are in its own package, which is imported when one of them is used.
PACKAGES = (
    *(
        f"orchgpu.cli.commands.{name}"
        for name in ("definition", "jobs", "objects", "operation", "local")
    ),
    "simulator.commands",
)


@click.group(
    cls=CommandGroup,
    packages=PACKAGES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder of the local system. [default: ${HOME_VARIABLE}, else ./.orchgpu]",
)
@click.version_option(package_name="orchgpu", prog_name="orchgpu")
def cli(home: Path | None) -> None:
    """Lends a share of a remote GPU to functions that have none, for exactly one job.

    \b
    orchgpu demo                        run the whole system once on this machine
    orchgpu up --detach                 start a local system for your functions
    orchgpu deploy fdl.yaml             deploy a function
    orchgpu run NAME input.png --wait   run it and follow its job
    orchgpu down

    \b
    Exit codes: 0 done; 1 a job did not succeed, a check failed, or an internal
    error; 2 wrong input; 3 not found; 4 conflict; 5 not allowed; 6 busy;
    7 impossible; 8 unavailable; 9 timeout; 74 the output cannot be written;
    130 Ctrl-C; 141 output pipe closed.
    `plan`: 0 nothing to do, 2 changes to make, 1 a wrong file.
    """
    if home is not None:
        os.environ[HOME_VARIABLE] = str(home.absolute())


def main() -> None:
    run_and_exit(cli, "orchgpu")
