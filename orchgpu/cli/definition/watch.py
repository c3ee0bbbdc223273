"""A deploy repeated after every change of the definition or of its files, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from corekit.cli.screen import counted, echo, echo_json
from corekit.cli.text import printable
from corekit.errors import AppError, invalid
from fdl.model import Document
from orchgpu.deploy.files import STANDARD_INPUT, read_document
from orchgpu.deploy.watching import LOOK_S, Changes, Stamps, paths_of, stamps

#: Deploys the document of a file.
Deploy = Callable[[Document], object]
#: Files that are named in one line.
_NAMED_MAX = 3


def watch(file: Path, deploy: Deploy, *, as_json: bool, inputs: Sequence[Path] = ()) -> None:
    """Deploy now and after every change, also of `inputs`. An error is printed, and the next
    change is awaited.

    Never returns: Ctrl-C ends it. Raises INVALID for standard input.
    """
    if file == STANDARD_INPUT:
        raise invalid("--watch needs a FILE: standard input can be read once only")
    known: Document | None = None
    try:
        while True:
            before = stamps([*paths_of(file, known), *inputs])
            try:
                known = read_document(file)
                before = {**stamps([*paths_of(file, known), *inputs]), **before}
                deploy(known)
            except AppError as error:
                _echo_error(error, as_json=as_json)
            paths = [*paths_of(file, known), *inputs]
            if not as_json:
                echo(f"watching {counted(len(paths), 'path')}; Ctrl-C ends", err=True)
            changed = _next_change(before, paths)
            if not as_json:
                echo(f"{time.strftime('%H:%M:%S')} changed: {_named(changed)}")
    except KeyboardInterrupt:
        raise KeyboardInterrupt("no longer watched; what was deployed stays") from None


def _echo_error(error: AppError, *, as_json: bool) -> None:
    if as_json:
        echo_json({"error": error.as_json()}, indent=None)
    echo(f"orchgpu: {error.message}", err=True)


def _next_change(before: Stamps, paths: list[Path]) -> list[Path]:
    """Wait for a change of `paths` since `before`, which may have stamps of further files."""
    wanted = set(paths)
    watched = (path for path in before if path in wanted or not wanted.isdisjoint(path.parents))
    changes = Changes({path: before[path] for path in watched})
    while not (changed := changes.settled(stamps(paths), time.monotonic())):
        time.sleep(LOOK_S)
    return changed


def _named(changed: list[Path]) -> str:
    names = [printable(path.name) for path in changed[:_NAMED_MAX]]
    more = len(changed) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
