"""Begin a function of your own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click

from corekit.cli.screen import echo, echo_json, json_option
from fdl.plan.groups import deployed
from orchgpu.deploy.files import read_document
from orchgpu.deploy.starters import DEFAULT_KIND, files_of, kinds, write

#: Of a line of --help, which is printed as it is.
_HELP_WIDTH = 76


def _kinds_text() -> str:
    width = max(map(len, kinds())) + 2
    lines = [
        line
        for kind, text in kinds().items()
        for line in textwrap.wrap(
            text, _HELP_WIDTH, initial_indent=kind.ljust(width), subsequent_indent=" " * width
        )
    ]
    return "\b\n" + "\n".join(lines)


@click.command("init", epilog=_kinds_text())
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(kinds())),
    default=DEFAULT_KIND,
    show_default=True,
    metavar="KIND",
    help="What the function does at first; the list is below.",
)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder to write to. [default: ./NAME]",
)
@json_option
def command(name: str, kind: str, into: Path | None, as_json: bool) -> None:
    """Write a definition, its script and a test input for a function NAME that works as it is.

    Its buckets begin with NAME. An existing file is never overwritten: the command ends with 4.

    \b
    Example:  orchgpu init my-search --kind sequence-search
    """
    folder = into if into is not None else Path(name)
    files = files_of(kind, name)
    write(files, folder)
    definition, *_, given = (folder / file.name for file in files)
    document = read_document(definition)
    functions = [function.name for function in deployed(document)]
    served = [one.name for one in deployed(document) if one.gpu is not None or one.job is not None]
    if as_json:
        paths = [str(folder / file.name) for file in files]
        echo_json({"kind": kind, "functions": functions, "files": paths})
        return
    for file in files:
        echo(f"wrote {folder / file.name}")
    first = served[0] if len(functions) == 1 else functions[0]
    echo("next:")
    echo("  orchgpu up --detach                    # a local system, unless one runs")
    echo(f"  orchgpu deploy {definition}")
    workflows = [workflow.name for workflow in document.workflows]
    if workflows:
        echo(f"  orchgpu run {workflows[0]} {given} --wait")
    elif first in served:
        echo(f"  orchgpu run {first} {given} --wait")
    else:
        echo(f"  orchgpu put {given} {first}")
