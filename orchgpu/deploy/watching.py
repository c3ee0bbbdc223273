"""The files of a definition watched for changes: which have changed, and when they have settled.

Modification times are compared, some times a second: it needs no library, works on every file
system (also on network and container mounts, which send no events), and a definition has few files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from fdl.model import Document, Function

#: Between two looks.
LOOK_S = 0.25
#: Changed files count once nothing has changed for this long: an editor writes in several steps.
SETTLED_S = 0.4
#: Files of a folder that are watched; a larger one is watched by its first files.
FILES_MAX = 10_000

#: Inode, size and time of the last change of a file; None: there is no such file.
Stamp: TypeAlias = tuple[int, int, int] | None
Stamps: TypeAlias = Mapping[Path, Stamp]


def paths_of(definition: Path, document: Document | None) -> list[Path]:
    """The definition and what its functions are made of: scripts, modules, files and folders."""
    found = [definition]
    for function in document.functions.aws if document is not None else ():
        found += [definition.parent / name for name in _names(function)]
    return list(dict.fromkeys(found))


def _names(function: Function) -> Iterator[str]:
    yield from filter(None, (function.runs, function.function.extra_payload))


def stamps(paths: Iterable[Path]) -> Stamps:
    found: dict[Path, Stamp] = {}
    for path in paths:
        found[path] = _stamp(path)
        if path.is_dir():
            for inner in sorted(path.rglob("*")):
                if len(found) >= FILES_MAX:
                    break
                found[inner] = _stamp(inner)
    return found


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    if not path.is_file():
        return 0, 0, 0  # of a folder only its files count
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(slots=True)
class Changes:
    """Changes since the last deploy, until they have settled. Pure."""

    deployed: Stamps  #: of the files when they were read
    _seen: Stamps = field(init=False)
    _since_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._seen = self.deployed

    def settled(self, now: Stamps, at_s: float) -> list[Path]:
        """The changed files, once nothing has changed for `SETTLED_S`; else none."""
        if now != self._seen:
            self._seen, self._since_s = now, at_s
        if self._since_s is None or at_s - self._since_s < SETTLED_S:
            return []
        self._since_s = None
        names = dict.fromkeys((*self.deployed, *now))
        return [name for name in names if self.deployed.get(name) != now.get(name)]
