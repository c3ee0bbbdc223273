"""SHA-256 digests of the host's data sets and programs, computed once per content.

The digest of a file is that of its bytes, as `sha256sum` prints it. That of a folder is the SHA-256
of the lines `<digest>  <path>` of its files, sorted by path: of `find -type f | sort | xargs
sha256sum` there, with paths that do not begin with `./`. A program counts by its own file, without
its options and other files that it reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from corekit.aio.files import replace_file

logger = logging.getLogger(__name__)

#: The file of known digests, in the host's state folder.
DIGESTS_NAME = "digests.json"
#: A file of this size takes a second or more: its digest is worth a line of the log.
_LARGE_BYTES = 2**30

#: Inode, size and time of change of a file: equal ones are taken for the same content.
_Stamp = list[int]


class Digests:
    """Digests by path, kept in a file with the stamp of each: a start reads changed files only."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, tuple[_Stamp, str]] = {}
        self._used: dict[str, tuple[_Stamp, str]] = {}

    def of(self, paths: Mapping[str, Mapping[str, Path]]) -> dict[str, dict[str, str]]:
        """The digests by kind and name; "" for a path that cannot be read, with a warning."""
        self._known = self._read()
        found = {
            kind: {name: self._digest(name, path) for name, path in named.items()}
            for kind, named in paths.items()
        }
        if self._used != self._known:
            with contextlib.suppress(OSError):  # the next start computes them again
                replace_file(self._file, json.dumps(self._used).encode())
        return found

    def _digest(self, name: str, path: Path) -> str:
        try:
            if not path.is_dir():
                return self._of_file(path)
            whole = hashlib.sha256()
            for inner in _files(path):
                line = f"{self._of_file(inner)}  {inner.relative_to(path)}\n"
                whole.update(line.encode("utf-8", "surrogateescape"))
            return whole.hexdigest()
        except OSError as error:
            about = {"event": "digest", "data": name, "why": str(error)}
            logger.warning("no digest: the content cannot be read", extra=about)
            return ""

    def _of_file(self, path: Path) -> str:
        status = path.stat()
        stamp = [status.st_ino, status.st_size, status.st_mtime_ns]
        key = str(path)
        known = self._known.get(key)
        if known is None or known[0] != stamp:
            if status.st_size >= _LARGE_BYTES:
                logger.info("computing a digest", extra={"event": "digest", "path": key})
            with path.open("rb") as file:
                known = stamp, hashlib.file_digest(file, "sha256").hexdigest()
        self._used[key] = known
        return known[1]

    def _read(self) -> dict[str, tuple[_Stamp, str]]:
        try:
            found = json.loads(self._file.read_bytes())
            return {str(path): (list(stamp), str(text)) for path, (stamp, text) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # absent, or torn: all are computed


def _files(folder: Path) -> Iterator[Path]:
    """All files below, by path; links to folders are not followed."""
    found = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    yield from sorted(path for path in found if path.is_file())
