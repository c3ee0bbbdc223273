"""`orchgpu fdl …`: look at a function definition, and rewrite it, without any cloud."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from fdl.lint.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.model import Rewrite
from fdl.parse import read
from fdl.text.compose import Composed
from fdl.text.nodes import Node
from fdl.text.render import render
from orchgpu.cli.definition.findings import note_json, reported, show_notes
from orchgpu.cli.terminal.screen import Commands, say_json
from orchgpu.deploy.deployment import validate
from orchgpu.deploy.files import (
    STANDARD_INPUT,
    known_middlewares,
    name_of,
    read_composed,
    read_document,
)

#: `fmt --check` found a file that is written otherwise.
UNFORMATTED_STATUS = 1

#: `-` is standard input.
_file = click.argument("file", type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
_write = click.option("--write", "-w", is_flag=True, help="Rewrite FILE instead of printing it.")


@click.group(cls=Commands)
def fdl() -> None:
    """Look at a function definition without any cloud."""


@fdl.command("validate")
@_file
@_json
@reported
def validate_file(file: Path, as_json: bool) -> None:
    """Parse FILE and say what is wrong or suspicious; ends with 2 when something is wrong.

    \b
    Example:  orchgpu fdl validate fdl.yaml
    """
    document, notes = validate(file)
    errors = [note for note in notes if note.severity is Severity.ERROR]
    if as_json:
        names = [function.name for function in document.functions.aws]
        shown = {"valid": not errors, "functions": names, "notes": [note_json(n) for n in notes]}
        say_json(shown)
    show_notes(notes, name_of(file))
    if document.rewrites:
        click.echo(f"note: `orchgpu fdl migrate {file}` prints the file as it is read", err=True)
    if errors:
        counted = f"{len(errors)} error{'s' if len(errors) > 1 else ''}"
        click.echo(f"orchgpu: {name_of(file)}: {counted}", err=True)
        sys.exit(EXIT_STATUS[ErrorCode.INVALID])
    if not as_json:
        click.echo(f"{name_of(file)}: valid")


@fdl.command("fmt")
@_file
@_write
@click.option("--check", is_flag=True, help="Say nothing; end with 1 if FILE would change.")
@_json
@reported
def fmt(file: Path, write: bool, check: bool, as_json: bool) -> None:
    """Print FILE in the one style; keys keep their order, comments their place.

    \b
    Example:  orchgpu fdl fmt --write fdl.yaml
    """
    composed = read_composed(file)
    text = render(composed, composed.root)
    changes = text != composed.source.text
    if not check:
        _put(file, text, composed, write=write, quiet=as_json)
    if as_json:
        say_json({"changes": changes, "written": write and not check, "text": text})
    if check and changes:
        click.echo(f"orchgpu: {name_of(file)}: fmt would change it", err=True)
        sys.exit(UNFORMATTED_STATUS)


@fdl.command("migrate")
@_file
@_write
@_json
@reported
def migrate_file(file: Path, write: bool, as_json: bool) -> None:
    """Print FILE with older shapes and foreign blocks rewritten into what a deploy reads.

    What was rewritten is told on standard error. A file that a deploy would refuse is not printed:
    the command ends with 2 and says what to write.

    \b
    Example:  orchgpu fdl migrate scar.yaml > fdl.yaml
    """
    composed = read_composed(file)
    root, rewrites = _migrated(composed)
    for rewrite in rewrites:
        place = f"{composed.source.name}:{rewrite.at.line}:{rewrite.at.column}"
        click.echo(f"{place}: {rewrite.path}: {rewrite.message}", err=True)
    text = render(composed, root)
    _put(file, text, composed, write=write, quiet=as_json)
    if as_json:
        told = [
            {"path": r.path, "line": r.at.line, "column": r.at.column, "message": r.message}
            for r in rewrites
        ]
        say_json({"rewrites": told, "written": write, "text": text})


def _migrated(composed: Composed) -> tuple[Node, tuple[Rewrite, ...]]:
    """What a deploy reads. Raises INVALID where a deploy would refuse it: the result is valid."""
    document, root = read(composed)
    notes = lint(document, middlewares=known_middlewares())
    errors = [note for note in notes if note.severity is Severity.ERROR]
    if errors:
        raise invalid("\n".join(note.text(composed.source.name) for note in errors))
    return root, document.rewrites


def _put(file: Path, text: str, composed: Composed, *, write: bool, quiet: bool) -> None:
    if write and file == STANDARD_INPUT:
        raise click.UsageError("--write needs a FILE: standard input cannot be rewritten")
    if not write:
        click.echo("" if quiet else text, nl=False)
    elif text != composed.source.text:
        new = file.with_name(f".{file.name}.new")
        try:
            new.write_text(text, encoding="utf-8")
            new.chmod(file.stat().st_mode & 0o777)
            new.replace(file)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise AppError(ErrorCode.DENIED, f"{file}: {error.strerror}") from error


@fdl.command("explain")
@click.argument("key", required=False)
@_json
@reported
def explain_key(key: str | None, as_json: bool) -> None:
    """What KEY means, takes and defaults to; without KEY, all of them in a line each.

    \b
    Example:  orchgpu fdl explain gpu.memory
    """
    from fdl.keys.reference import explain, known_keys

    found = known_keys() if key is None else explain(key)
    if as_json:
        shown = [
            {
                "path": known.path,
                "status": known.status.value,
                "meaning": known.meaning,
                "value": known.key.reader.describe(),
                "default": known.default,
                "required": known.key.required,
            }
            for known in found
        ]
        say_json({"keys": shown})
    elif key is None:
        width = max(len(known.short) for known in found)
        for known in found:
            click.echo(f"{known.short:<{width}}  {known.status.value}")
    else:
        click.echo("\n\n".join(known.text() for known in found))


@fdl.command("graph")
@_file
@click.option(
    "--format",
    "kind",
    type=click.Choice(("terminal", "dot", "mermaid")),
    default="terminal",
    show_default=True,
    help="What to draw with.",
)
@_json
@reported
def graph(file: Path, kind: str, as_json: bool) -> None:
    """Draw the workflow of FILE: an output that another function's input takes is an edge.

    \b
    Example:  orchgpu fdl graph fdl.yaml --format mermaid > workflow.mmd
    """
    from fdl.graph import drawing
    from fdl.graph.graph import graph_of

    found = graph_of(read_document(file))
    if as_json:
        say_json(asdict(found))
        return
    draw = {"terminal": drawing.terminal, "dot": drawing.dot, "mermaid": drawing.mermaid}[kind]
    click.echo(draw(found), nl=False)


@fdl.command("schema")
def schema() -> None:
    """Print the JSON Schema of a definition, for an editor.

    \b
    Example:  orchgpu fdl schema > fdl.schema.schema.json
    """
    from fdl.keys.document import json_schema
    from remote_gpu.middleware import names

    click.echo(json.dumps(json_schema(names()), indent=2))
