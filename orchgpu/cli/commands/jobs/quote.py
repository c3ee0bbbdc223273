"""The expected end and cost of a run, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import click

from corekit.aio.environment import budget_from_environment
from corekit.cli.screen import echo
from corekit.errors import invalid
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.definition.target import open_target
from orchgpu.cli.jobs.quotes import deployed_subject, quote
from orchgpu.cli.options import cloud_options, is_definition, scheduler_option
from orchgpu.cloud_services import Address
from orchgpu.deploy.deployment import prepare
from orchgpu.deploy.files import read_document
from orchgpu.deploy.records import functions_of, named, workflows_of
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.quoting import Subject
from orchgpu.jobs.transfers import inputs_of


@click.command("quote")
@click.argument("given", nargs=-1, metavar="[FILE.yaml] [INPUT...]", type=click.Path())
@click.option(
    "--name",
    metavar="NAME",
    shell_complete=function_name,
    help="A function, or a workflow. [default: FILE's only one]",
)
@scheduler_option
@cloud_options
def command(
    given: tuple[str, ...],
    name: str | None,
    scheduler: str | None,
    address: Address,
    as_json: bool,
) -> int:
    """Show when a run of NAME would end and what it would cost; nothing is uploaded or booked.

    NAME is deployed, or with FILE.yaml as that file would deploy it. An INPUT is a file, a folder,
    s3://bucket/key or s3://bucket/prefix/, as those of `orchgpu run`; of several, all one after the
    other and all at once are shown too. The scheduler plans around what is booked, at learned or
    stated times: its policy must be one that gives promises (`ssgm set policy slo`).

    Ends with 0 when it is possible now, with 6 when the devices are busy (for an `slo` of NAME),
    with 7 when it is impossible.

    \b
    Example:  orchgpu quote fdl.yaml --name film s3://media/new/
    """
    definition, inputs = _split(given)
    with closing(
        JobCloud(address.endpoint_url, address.region, address.profile, connections=4)
    ) as cloud:
        if definition is None:
            if name is None:
                raise invalid("give --name NAME, or the FILE.yaml of a function or workflow")
            subject = deployed_subject(cloud, cloud.function_or_workflow(name))
        else:
            subject = _declared(definition, name, address)
        count = len(inputs_of(cloud, subject.of, inputs, partial(echo, err=True))) if inputs else 1
    return quote(subject, count, scheduler, address, as_json=as_json)


def _split(given: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """The definition, if the first one is a file that is called so, and the inputs."""
    if given and is_definition(given[0]) and "://" not in given[0]:
        return Path(given[0]), given[1:]
    return None, given


def _declared(file: Path, name: str | None, address: Address) -> Subject:
    """As a deploy would make it. Reads the cloud, and changes nothing."""
    document = read_document(file)
    with open_target(address, document) as target:
        wanted = prepare(file, target.cloud, budget_from_environment(), document).wanted
    functions, workflows = functions_of(wanted), workflows_of(wanted)
    return Subject(of=named(name, functions, workflows), functions=functions)
