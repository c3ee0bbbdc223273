"""Check and rewrite a definition, without a cloud."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import click

from corekit.cli.chart import BLOCKS
from corekit.cli.groups import CommandGroup
from corekit.cli.screen import counted, echo, echo_json, echo_raw, json_option, output_glyphs
from corekit.decode import encode
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from corekit.suggest import one_of_known
from fdl.diagnostics import Severity
from fdl.graph import drawing
from fdl.graph.asl import machine
from fdl.graph.graph import Graph, graph_of
from fdl.keys.document import json_schema
from fdl.keys.reference import explain, known_keys
from fdl.lint.lint import lint
from fdl.model import Document, Rewrite, Workflow
from fdl.parse import read
from fdl.plan.groups import deployed
from fdl.text.compose import Composed
from fdl.text.nodes import Node
from fdl.text.render import render
from orchgpu.cli.definition.target import echo_notes, note_json
from orchgpu.cli.jobs.runs import run_graph
from orchgpu.deploy.declared import SUFFIX
from orchgpu.deploy.deployment import validate
from orchgpu.deploy.files import (
    STANDARD_INPUT,
    known_middlewares,
    name_of,
    read_composed,
    read_document,
)
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.runs import find_run
from remote_gpu.middleware import names as middlewares

#: `fmt --check` found a file that is formatted differently.
UNFORMATTED_STATUS = 1
GRAPH_FORMATS = ("text", "mermaid", "dot", "json")

_file = click.argument("file", type=click.Path(path_type=Path))
_write = click.option("--write", "-w", is_flag=True, help="Rewrite FILE instead of printing it.")


@click.group("fdl", cls=CommandGroup)
def command() -> None:
    """Check and rewrite a function definition, without a cloud."""


@command.command("validate")
@_file
@json_option
def validate_file(file: Path, as_json: bool) -> int:
    """List errors and warnings in FILE; ends with 2 when there is an error.

    FILE may be `-` (standard input).

    \b
    Example:  orchgpu fdl validate fdl.yaml
    """
    document, notes = validate(file)
    errors = [note for note in notes if note.severity is Severity.ERROR]
    if as_json:
        names = [function.name for function in document.functions.aws]
        shown = [note_json(note) for note in notes]
        echo_json({"valid": not errors, "functions": names, "notes": shown})
    echo_notes(notes, name_of(file))
    if document.rewrites:
        echo(f"note: `orchgpu fdl migrate {file}` prints the file as it is read", err=True)
    if errors:
        echo(f"orchgpu: {name_of(file)}: {counted(len(errors), 'error')}", err=True)
        return EXIT_STATUS[ErrorCode.INVALID]
    if not as_json:
        echo(f"{name_of(file)}: valid")
    return 0


@command.command("fmt")
@_file
@_write
@click.option("--check", is_flag=True, help="Print nothing; end with 1 if FILE would change.")
@json_option
def fmt(file: Path, write: bool, check: bool, as_json: bool) -> int:
    """Print FILE in the standard style; keys keep their order and comments their place.

    FILE may be `-` (standard input).

    \b
    Example:  orchgpu fdl fmt --write fdl.yaml
    """
    composed = read_composed(file)
    text = render(composed, composed.root)
    changes = text != composed.source.text
    if not check:
        _put(file, text, composed, write=write, quiet=as_json)
    if as_json:
        echo_json({"changes": changes, "written": write and not check, "text": text})
    if check and changes:
        echo(f"orchgpu: {name_of(file)}: fmt would change it", err=True)
        return UNFORMATTED_STATUS
    return 0


@command.command("migrate")
@_file
@_write
@json_option
def migrate_file(file: Path, write: bool, as_json: bool) -> None:
    """Print FILE with older shapes and foreign blocks rewritten into what a deploy reads.

    The rewrites are listed on standard error. A file that a deploy would refuse is not printed: the
    command ends with 2 and lists the errors. FILE may be `-` (standard input).

    \b
    Example:  orchgpu fdl migrate scar.yaml > fdl.yaml
    """
    composed = read_composed(file)
    root, rewrites = _migrated(composed)
    for rewrite in rewrites:
        place = f"{composed.source.name}:{rewrite.at.line}:{rewrite.at.column}"
        echo(f"{place}: {rewrite.path}: {rewrite.message}", err=True)
    text = render(composed, root)
    _put(file, text, composed, write=write, quiet=as_json)
    if as_json:
        shown = [
            {"path": r.path, "line": r.at.line, "column": r.at.column, "message": r.message}
            for r in rewrites
        ]
        echo_json({"rewrites": shown, "written": write, "text": text})


def _migrated(composed: Composed) -> tuple[Node, tuple[Rewrite, ...]]:
    document, root = read(composed)
    notes = lint(document, middlewares=known_middlewares())
    errors = [note for note in notes if note.severity is Severity.ERROR]
    if errors:
        raise invalid("\n".join(note.text(composed.source.name) for note in errors))
    return root, document.rewrites


def _put(file: Path, text: str, composed: Composed, *, write: bool, quiet: bool) -> None:
    if write and file == STANDARD_INPUT:
        raise click.UsageError("--write needs a FILE: standard input cannot be rewritten")
    if write and file.suffix == SUFFIX:
        text = f"--write would replace the code of {file}: print the definition instead"
        raise click.UsageError(text)
    if not write:
        echo_raw("" if quiet else text, nl=False)
    elif text != composed.source.text:
        new = file.with_name(f".{file.name}.new")
        try:
            new.write_text(text, encoding="utf-8")
            new.chmod(file.stat().st_mode & 0o777)
            new.replace(file)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise AppError(ErrorCode.DENIED, f"{file}: {error.strerror}") from error


@command.command("explain")
@click.argument("key", required=False)
@json_option
def explain_key(key: str | None, as_json: bool) -> None:
    """Meaning, value and default of KEY; without KEY, all keys, one line each.

    \b
    Example:  orchgpu fdl explain gpu.memory
    """
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
        echo_json({"keys": shown})
    elif key is None:
        width = max(len(known.short) for known in found)
        for known in found:
            echo(f"{known.short:<{width}}  {known.status.value}")
    else:
        echo("\n\n".join(known.text() for known in found))


def _graph_of_run(run: str) -> Graph:
    with closing(JobCloud()) as cloud:
        return run_graph(find_run(cloud, run))


@command.command("graph")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--run", metavar="RUN", help="Draw this run, with the state of each step, instead.")
@click.option(
    "--format",
    "kind",
    type=click.Choice((*GRAPH_FORMATS, "terminal")),  # `terminal`: the name of `text` before
    metavar=f"[{'|'.join(GRAPH_FORMATS)}]",
    default="text",
    show_default=True,
    help="Output format.",
)
@json_option
def graph(file: Path | None, run: str | None, kind: str, as_json: bool) -> None:
    """Draw the workflow of FILE: storage, functions with their devices, outputs, next functions.

    An output that another function's input takes starts that function. FILE may be `-` (standard
    input). With --run the steps of a run are drawn, each with its state, seconds and device.

    \b
    Example:  orchgpu fdl graph fdl.yaml --format mermaid > workflow.mmd
    """
    if (file is None) == (run is None):
        raise invalid("give a FILE, or --run RUN")
    found = _graph_of_run(run) if run is not None else graph_of(read_document(file or Path()))
    if as_json or kind == "json":
        echo_json(encode(found))
        return
    if kind in ("text", "terminal"):
        in_blocks = output_glyphs() is BLOCKS
        branches = drawing.BRANCHES if in_blocks else drawing.ASCII_BRANCHES
        shown = drawing.text(found, branches).removesuffix("\n")
        echo(shown if in_blocks else shown.replace("×", "x"))
    else:
        echo_raw({"dot": drawing.dot, "mermaid": drawing.mermaid}[kind](found), nl=False)


@command.command("export")
@_file
@click.option(
    "--format", "kind", type=click.Choice(["asl"]), required=True, help="`asl`: Step Functions."
)
@click.option("--workflow", metavar="NAME", help="Of several in FILE.")
def export(file: Path, kind: str, workflow: str | None) -> None:
    """Print a workflow of FILE as a state machine in the Amazon States Language.

    Each function takes `{"files": [{"bucket", "key"}]}` and returns the same with what it wrote.
    What a state machine cannot express is refused with its line: devices (`gpu`), promises, caps, a
    step that takes only some files of another one, branches that do not join as a whole. FILE may
    be `-` (standard input).

    \b
    Example:  orchgpu fdl export fdl.yaml --format asl --workflow film > film.asl.json
    """
    document = read_document(file)
    notes = lint(document, middlewares=known_middlewares())
    if errors := [note for note in notes if note.severity is Severity.ERROR]:
        raise invalid("\n".join(note.text(name_of(file)) for note in errors))
    one = _workflow(document, workflow)
    echo_raw(json.dumps({"asl": machine}[kind](document, one, deployed(document)), indent=2))


def _workflow(document: Document, name: str | None) -> Workflow:
    """The workflow of that name, or the only one."""
    known = {one.name: one for one in document.workflows}
    shared = {one.name for one in document.sandboxes}
    if name in shared or (name is None and shared and not known):
        names = ", ".join(sorted(shared))
        raise invalid(f"{names}: the steps of a shared sandbox are one function, not a machine")
    if name is None:
        if len(known) != 1:
            names = ", ".join(known)
            raise invalid(f"give --workflow: {names}" if known else "the file has no workflows")
        return next(iter(known.values()))
    if name not in known:
        text = f"the file has no workflow {name!r}{one_of_known(name, known)}"
        raise AppError(ErrorCode.NOT_FOUND, text)
    return known[name]


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema of a definition, for an editor.

    \b
    Example:  orchgpu fdl schema > fdl.schema.json
    """
    echo_raw(json.dumps(json_schema(middlewares()), indent=2))
