"""`ssgm`: the scheduler from the command line, and its classic form (`classic.py`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import click

from corekit.aio.output import exiting_by_output
from corekit.cli.groups import CommandGroup
from corekit.cli.program import status_of
from gpu_scheduler.client.commands import (
    admin_commands,
    classic,
    lease_commands,
    query_commands,
    quote_command,
)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="orchgpu", prog_name="ssgm")
def commands() -> None:
    """The scheduler from the command line: leases, devices, queue, parameters.

    \b
    export SSGM_SCHEDULER=127.0.0.1:4700     address of ssgmd, instead of --scheduler
    ssgm hosts                               the hosts
    ssgm dry-run -g 2 -m 4GiB                the answer to a request, without a lease
    ssgm alloc -g 2 -m 4GiB --wait           take a lease, from the queue if necessary
    ssgm quote run.yaml                      expected end and cost of a run
    ssgm explain ATTEMPT                     why a request waits
    ssgm dealloc LEASE                       give a lease back

    Every command prints JSON with --json. The classic form of SSGM is accepted too:

    \b
    ssgm -S HOST -P PORT -alloc -g N [request options]
    ssgm -S HOST -P PORT -dealloc -j ID

    \b
    Exit status: 0 done, 2 wrong request, 3 not found, 4 conflict, 5 not allowed,
    6 busy, 7 impossible, 8 ssgmd does not answer, 9 timeout, 74 the output cannot
    be written, 130 interrupted, 141 output pipe closed.
    """


commands.add_section("Leases", lease_commands.COMMANDS)
commands.add_section("Queries", (*query_commands.COMMANDS, *quote_command.COMMANDS))
commands.add_section("Administration", admin_commands.COMMANDS)


def run(arguments: Sequence[str]) -> int:
    """One command line, classic or not; its exit status."""
    if classic.is_classic(arguments):
        return classic.main(arguments)
    return status_of(commands, "ssgm", arguments)


def main() -> None:
    """Entry point. A failure is one error line: library logs are not shown."""
    logging.getLogger().addHandler(logging.NullHandler())
    with exiting_by_output("ssgm"):
        status = run(sys.argv[1:])
    sys.exit(status)
