"""Notes of what this program used of its devices, in a file of its runner: provenance.

One JSON object a line, each once per process: `{"operation": …, "implementation": …}`, `{"data":
{name: sha256}}`, `{"programs": …}`, `{"resource": sha256, "type": …, "source": …}`, and `{"lacks":
{"data": name}}` for what a host does not have. Without a runner nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os

from remote_gpu.wire.uses import HOST_KINDS, USES_VARIABLE

#: Lines of one process: an upper bound for a program that uses ever new things.
_LINES_MAX = 1000
_SOURCE_CHARS_MAX = 500


class UsesFile:
    """Appends lines to the runner's file; an error of that file is not an error of the program."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: set[tuple[str, ...]] = set()

    def operation(self, name: str, implementation: str) -> None:
        """An operation ran. Called after each one, so the usual case is one look-up."""
        if (name, implementation) not in self._seen and implementation:
            self._once((name, implementation), operation=name, implementation=implementation)

    def host(self, used: object) -> None:
        """The part `used` of an answer."""
        found = used if isinstance(used, dict) else {}
        for kind in HOST_KINDS:
            for name, digest in dict(found.get(kind) or {}).items():
                self._once((kind, str(name), str(digest)), **{kind: {str(name): str(digest)}})

    def lacks(self, lacks: dict[str, str]) -> None:
        """A host does not have this data set or program."""
        for kind, name in lacks.items():
            self._once(("lacks", kind, name), lacks={kind: name})

    def resource(self, content: str, type_: str, source: object) -> None:
        """A resource was registered; `source` is named if it is a path or an address."""
        named = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
        # without the query: that of a presigned address is a credential
        text = str(named).partition("?")[0][:_SOURCE_CHARS_MAX]
        self._once(("resource", content, type_), resource=content, type=type_, source=text)

    def _once(self, key: tuple[str, ...], **line: object) -> None:
        if key in self._seen or len(self._seen) >= _LINES_MAX:
            return
        self._seen.add(key)
        data = json.dumps(line).encode() + b"\n"
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(file, data)  # one write: lines of several processes stay whole
            finally:
                os.close(file)


_FILES: dict[str, UsesFile] = {}


def uses_file() -> UsesFile | None:
    """The file of this process's runner; None without one."""
    path = os.environ.get(USES_VARIABLE)
    if not path:
        return None
    return _FILES.setdefault(path, UsesFile(path))
