"""The user's FDL file and what its paths point to."""

from __future__ import annotations

import ast
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from contract.secrets.reference import Scheme, SecretReference
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import replace
from fdl.diagnostics import FileFacts, FileKind, MiddlewareFacts
from fdl.model import Document, Function
from fdl.parse import parse
from fdl.plan.schedules import INPUT_BYTES_MAX
from fdl.scheduled import Scheduled
from fdl.text.compose import BYTES_MAX, Composed, compose
from orchgpu.deploy import declared
from orchgpu.deploy.packing import read, within
from remote_gpu.middleware.registry import known

#: The start of a script that is searched for line ends; larger files are programs.
_LOOK_BYTES_MAX = 1 << 20
#: Opening one of these may block.
_KINDS = (
    (stat.S_ISDIR, FileKind.FOLDER),
    (stat.S_ISFIFO, FileKind.PIPE),
    (stat.S_ISSOCK, FileKind.SOCKET),
    (stat.S_ISCHR, FileKind.DEVICE),
    (stat.S_ISBLK, FileKind.DEVICE),
)
#: The FILE for standard input, and its name in messages.
STANDARD_INPUT, STANDARD_INPUT_NAME = Path("-"), "<stdin>"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read_document(path: Path) -> Document:
    """Parse a file, or standard input for `-`. Raises NOT_FOUND or INVALID.

    A Python file is imported, by another process, for its decorated functions.
    """
    return parse(_read(path), _source_name(path))


def read_composed(path: Path) -> Composed:
    """A file, or standard input for `-`, as nodes. Raises NOT_FOUND or INVALID."""
    return compose(_read(path), _source_name(path))


def _source_name(path: Path) -> str:
    return f"{path} (as a definition)" if path.suffix == declared.SUFFIX else name_of(path)


def name_of(path: Path) -> str:
    return STANDARD_INPUT_NAME if path == STANDARD_INPUT else str(path)


def _read(path: Path) -> bytes:
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read(BYTES_MAX + 1)
    if path.suffix == declared.SUFFIX:
        return declared.text_of(path)
    try:
        with path.open("rb") as file:
            return file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        raise AppError(ErrorCode.NOT_FOUND, f"{path}: no such file") from None
    except IsADirectoryError:
        raise invalid(f"{path} is a folder: give the definition{_definition_in(path)}") from None
    except OSError as error:
        raise invalid(f"{path}: {error.strerror}") from error


def _definition_in(folder: Path) -> str:
    found = [one for one in folder.glob("*.y*ml") if _declares_functions(one)]
    return f", as {found[0]}" if len(found) == 1 else ", a .yaml or .py file in it"


def _declares_functions(path: Path) -> bool:
    try:
        return path.is_file() and b"functions:" in path.read_bytes()[:_LOOK_BYTES_MAX]
    except OSError:
        return False


def known_middlewares() -> Mapping[str, MiddlewareFacts]:
    """The middlewares of this installation, as far as a definition depends on them."""
    return {
        name: MiddlewareFacts(one_host=middleware.one_host, loaders=middleware.loaders)
        for name, middleware in known().items()
    }


def facts_of(document: Document, folder: Path) -> Mapping[str, FileFacts]:
    """Facts about every script, folder and secret's file of the document, below `folder`."""
    functions = document.functions.aws
    names = [name for f in functions for name in (f.runs, f.function.extra_payload) if name]
    names += [one.name for f in functions for one in f.references if one.scheme is Scheme.FILE]
    names += [one.input_file for f in functions for one in f.schedule if one.input_file]
    return {name: _facts(folder / name) for name in names}


def located(function: Function, folder: Path) -> Function:
    """The same with absolute paths of its secrets' files, which start at `folder`."""
    secrets = {name: _located(one, folder) for name, one in function.secrets.items()}
    steps = tuple(located(step, folder) for step in function.steps)
    return replace(function, secrets=secrets, steps=steps)


def with_objects(function: Function, folder: Path, *, outside: bool) -> Function:
    """The same with the texts of its schedules' files, which start at `folder`.

    Raises INVALID for a file that leads out of the folder, unless `outside`, and for other bytes
    than UTF-8.
    """
    root = None if outside else folder.resolve()
    texts = tuple(_with_object(one, folder, root) for one in function.schedule)
    return replace(function, schedule=texts)


def _with_object(scheduled: Scheduled, folder: Path, root: Path | None) -> Scheduled:
    if not scheduled.input_file:
        return scheduled
    file = within(folder / scheduled.input_file, root)
    content = read(file, root, INPUT_BYTES_MAX)
    try:
        return replace(scheduled, input=content.decode())
    except UnicodeDecodeError:
        text = "EventBridge puts text: store other bytes in S3 and name them in the text"
        raise invalid(f"{file.path} is not UTF-8; {text}") from None


def _located(reference: SecretReference, folder: Path) -> SecretReference:
    if reference.scheme is not Scheme.FILE:
        return reference
    return SecretReference(Scheme.FILE, str((folder / reference.name).absolute()))


def _facts(path: Path) -> FileFacts:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # also a name too long, a loop of links, a file below a file
        return FileFacts(exists=False)
    kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), FileKind.FILE)
    if kind is not FileKind.FILE:
        return FileFacts(kind=kind)
    try:
        with path.open("rb") as file:
            start = file.read(_LOOK_BYTES_MAX)
    except OSError as error:
        raise invalid(f"{path}: {error.strerror}") from error
    return FileFacts(
        executable=os.access(path, os.X_OK),
        open_to_others=bool(mode & 0o077),
        first_line=start.split(b"\n", 1)[0][:256] + (b"\n" if b"\n" in start else b""),
        crlf=b"\r\n" in start,
        defines=_defined(start) if path.suffix == ".py" else None,
    )


def _defined(text: bytes) -> tuple[str, ...] | None:
    """The names that a module binds anywhere: any other name is surely missing."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return None
    found = [node.name for node in nodes if isinstance(node, _DEFINITIONS)]
    found += [node.asname or node.name for node in nodes if isinstance(node, ast.alias)]
    found += [node.id for node in nodes if isinstance(node, ast.Name)]
    return None if "*" in found else tuple(found)
