"""`ssgm`: the scheduler from the command line, and its classic form (`classic.py`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import click

from corekit.aio.output import exiting_by_output
from gpu_scheduler.client.commands import admin_commands, classic, lease_commands, query_commands
from gpu_scheduler.client.commands.terminal import status_of


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="orchgpu", prog_name="ssgm")
def commands() -> None:
    """Lend, give back, look: the scheduler from the command line.

    \b
    export SSGM_SCHEDULER=127.0.0.1:4700     where ssgmd listens; --scheduler says the same
    ssgm hosts                               what there is
    ssgm dry-run -g 2 -m 4GiB                what a request would be answered
    ssgm alloc -g 2 -m 4GiB --wait           take it, waiting in the queue if need be
    ssgm explain ATTEMPT                     why it waits
    ssgm dealloc LEASE                       give it back

    Every command speaks JSON with --json. SSGM's classic form is understood too:

    \b
    ssgm -S HOST -P PORT -alloc -g N [words of a request]
    ssgm -S HOST -P PORT -dealloc -j ID

    \b
    Exit status: 0 done, 2 wrong request, 3 no such thing, 4 somebody was first,
    5 not allowed, 6 busy, 7 impossible, 8 ssgmd does not answer, 9 no answer in time,
    74 the output cannot be written, 130 interrupted, 141 nobody reads the output.
    """


for command in (*lease_commands.COMMANDS, *query_commands.COMMANDS, *admin_commands.COMMANDS):
    commands.add_command(command)


def run(arguments: Sequence[str]) -> int:
    """One command line, classic or not; its exit status."""
    if classic.is_classic(arguments):
        return classic.main(arguments)
    return status_of(commands, arguments)


def main() -> None:
    """Entry point. What goes wrong is told once, by its error: no log beside it."""
    logging.getLogger().addHandler(logging.NullHandler())
    with exiting_by_output("ssgm"):
        status = run(sys.argv[1:])
    sys.exit(status)
