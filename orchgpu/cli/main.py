"""The group of all commands, and how their failures end the process."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import click

from corekit.aio.output import exiting_by_output
from corekit.errors import EXIT_STATUS, AppError, invalid
from orchgpu.cli.definition.fdl import fdl
from orchgpu.cli.definition.revisions import COMMANDS as DEPLOY_COMMANDS
from orchgpu.cli.jobs.cancel import cancel
from orchgpu.cli.jobs.cost import cost
from orchgpu.cli.jobs.dlq import dlq, retry
from orchgpu.cli.jobs.job import job
from orchgpu.cli.jobs.jobs import gpus, jobs
from orchgpu.cli.jobs.logs import logs
from orchgpu.cli.jobs.wait import wait
from orchgpu.cli.local.config import config
from orchgpu.cli.local.demo import demo
from orchgpu.cli.local.doctor import doctor
from orchgpu.cli.local.local import down, status, up
from orchgpu.cli.local.orchestrate import orchestrate
from orchgpu.cli.objects.objects import get, ls, put
from orchgpu.cli.objects.run import run
from orchgpu.cli.terminal.completion import completion
from orchgpu.cli.terminal.screen import Commands, say, say_json
from orchgpu.local.home import HOME_VARIABLE

#: What a shell reports for a program ended by Ctrl-C.
INTERRUPTED_STATUS = 130


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder of the local system. [default: ${HOME_VARIABLE}, else ./.orchgpu]",
)
@click.version_option(package_name="orchgpu", prog_name="orchgpu")
def cli(home: Path | None) -> None:
    """Lends functions that have no GPU a share of a remote one, for exactly one job.

    \b
    orchgpu demo                            all of it, once, on this machine
    orchgpu up --detach                     a local system for your own functions
    orchgpu deploy fdl.yaml                 make a function exist
    orchgpu run NAME input.png --wait       run it and fetch what it made
    orchgpu down

    \b
    Exit codes: 0 done; 1 a job did not succeed, a check failed, or a bug of
    ours; 2 wrong input; 3 no such thing; 4 somebody was first; 5 not allowed;
    6 busy; 7 impossible; 8 no answer; 9 not in time; 74 the output cannot be
    written; 130 Ctrl-C; 141 nobody reads the output.
    `plan`: 0 nothing to do, 2 something, 1 a wrong file.
    """
    if home is not None:
        os.environ[HOME_VARIABLE] = str(home.absolute())


#: By what somebody is about to do, the most usual first.
SECTIONS = {
    "Define and deploy": (fdl, *DEPLOY_COMMANDS),
    "Run and follow": (run, jobs, job, logs, wait, cancel, retry, dlq, cost),
    "Objects": (ls, put, get),
    "Operate": (gpus, doctor, config, orchestrate, completion),
    "A system on this machine": (demo, up, status, down),
}
for title, commands in SECTIONS.items():
    cli.add_section(title, commands)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    with exiting_by_output("orchgpu"):
        status = _run(arguments)
    sys.exit(status)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = cli.main(arguments, prog_name="orchgpu", standalone_mode=False)
    except AppError as error:
        _say_data(error, arguments)
        say(f"orchgpu: {error.message}", err=True)
        return EXIT_STATUS[error.code]
    except click.ClickException as error:
        _say_data(invalid(error.format_message()), arguments)
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip("\n"), err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as interrupt:  # click wraps ours in an Abort of its own
        # it may have come between the making of a coroutine and its first step: nobody's fault
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        say(f"orchgpu: {interrupted(interrupt)}", err=True)
        return INTERRUPTED_STATUS
    return result if isinstance(result, int) else 0


def _say_data(error: AppError, arguments: Sequence[str] | None) -> None:
    if "--json" in (sys.argv[1:] if arguments is None else arguments):
        say_json({"error": error.as_json()})


def interrupted(interrupt: BaseException) -> str:
    """What the interrupted command wanted to say, or just that it was."""
    told: BaseException | None = interrupt
    while told is not None:
        if isinstance(told, KeyboardInterrupt) and told.args:
            return str(told)
        told = told.__cause__ or told.__context__
    return "interrupted"
