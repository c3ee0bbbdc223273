"""Starters: the packaged examples as the beginning of a user's own function, under its own name."""

from __future__ import annotations

import importlib.resources
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from contract.secrets.reference import Scheme
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from fdl.parse import parse

#: The kind of `orchgpu init` without one.
DEFAULT_KIND = "hello-device"
#: The name begins those of buckets (63 characters), of which the longest is `NAME-intermediate`.
NAME_CHARACTERS_MAX = 40
_NAME = re.compile(rf"[a-z](?:[a-z0-9]|-(?!-)){{1,{NAME_CHARACTERS_MAX - 2}}}[a-z0-9]")
_DEFINITION, _INPUT = "fdl.yaml", "input"
#: The kind whose test input is taken for a kind without any: all of these read images.
_INPUT_OF_IMAGES = "text-recognition"
_PROGRAM, _FILE, _PRIVATE = 0o755, 0o644, 0o600


class StarterFile(Value):
    """One file to write."""

    name: str  #: relative to the new folder
    content: bytes
    mode: int


def kinds() -> dict[str, str]:
    """The kinds of starters, each with a sentence: the first line of its definition."""
    found = sorted(folder for folder in _examples().iterdir() if (folder / _DEFINITION).is_file())
    return {folder.name: _summary(folder / _DEFINITION) for folder in found}


def _summary(definition: Path) -> str:
    return definition.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()


def files_of(kind: str, name: str) -> list[StarterFile]:
    """The definition, scripts and one test input of a kind, for a function of that name.

    Raises INVALID for a name that no function or bucket can have, NOT_FOUND for an unknown kind.
    """
    if not _NAME.fullmatch(name):
        raise invalid(
            f"{name!r} cannot name a function and its buckets: write 3 to {NAME_CHARACTERS_MAX} of"
            " a-z, 0-9 and single hyphens, beginning with a letter and not ending with a hyphen"
        )
    if kind not in kinds():
        raise AppError(
            ErrorCode.NOT_FOUND, f"there is no kind {kind!r}; there are {', '.join(kinds())}"
        )
    folder = _examples() / kind
    scripts = [path for path in sorted(folder.glob("*.py")) if path.is_file()]
    definition = (folder / _DEFINITION).read_text(encoding="utf-8").replace(kind, name)
    return [
        StarterFile(name=_DEFINITION, content=definition.encode(), mode=_FILE),
        *(StarterFile(name=p.name, content=p.read_bytes(), mode=_PROGRAM) for p in scripts),
        *_keys(definition),
        _test_input(folder),
    ]


def _keys(definition: str) -> Iterator[StarterFile]:
    for function in parse(definition, _DEFINITION).functions.aws:
        for reference in function.references:
            if reference.scheme is Scheme.FILE:
                key = f"{secrets.token_urlsafe(32)}\n"
                yield StarterFile(name=reference.name, content=key.encode(), mode=_PRIVATE)


def _test_input(folder: Path) -> StarterFile:
    own = folder / _INPUT
    given = own if own.is_dir() else folder.parent / _INPUT_OF_IMAGES / _INPUT
    first = min(path for path in given.iterdir() if path.is_file())
    return StarterFile(name=f"{_INPUT}/{first.name}", content=first.read_bytes(), mode=_FILE)


def write(files: list[StarterFile], folder: Path) -> None:
    """Write the files below a folder, which is made. Raises CONFLICT if one of them exists."""
    there = [str(folder / file.name) for file in files if os.path.lexists(folder / file.name)]
    if there:
        text = f"{', '.join(there)}: exists already, and nothing was written; choose another folder"
        raise AppError(ErrorCode.CONFLICT, text, existing=there)
    try:
        for file in files:
            path = folder / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as opened:
                path.chmod(file.mode)
                opened.write(file.content)
    except OSError as error:
        raise invalid(f"{error.filename or folder}: {error.strerror}") from None


def _examples() -> Path:
    return Path(str(importlib.resources.files("fdl"))) / "examples"
