"""Diagnostics of lint: findings with severity and location, and the facts about files they need."""

from __future__ import annotations

from enum import StrEnum

from corekit.values import Value
from fdl.text.nodes import Location


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"  #: information; nothing to do about it


class Diagnostic(Value):
    """One finding, with its location."""

    severity: Severity
    path: str  #: of the key concerned
    at: Location
    message: str

    def text(self, file: str) -> str:
        """`file:line:column: severity: path: message`."""
        return (
            f"{file}:{self.at.line}:{self.at.column}: {self.severity}: {self.path}: {self.message}"
        )


class FileKind(StrEnum):
    """The type of a file, in the words of messages."""

    FILE = "a file"  #: a regular one
    FOLDER = "a folder"
    PIPE = "a pipe"
    SOCKET = "a socket"
    DEVICE = "a device"


class MiddlewareFacts(Value):
    """A middleware, as far as a definition depends on it."""

    one_host: bool = False  #: its client knows one server: all devices of a job on one host
    loaders: tuple[str, ...] = ()  #: loader variables by which its client is found


class FileFacts(Value):
    """Facts about the file that a path of the document names."""

    exists: bool = True
    kind: FileKind = FileKind.FILE
    executable: bool = True
    first_line: bytes = b""  #: with its line end
    crlf: bool = False  #: some line ends in CR LF
    open_to_others: bool = False  #: other users of the machine may read it
    #: Names that a Python module binds; None = not examined, or not valid Python.
    defines: tuple[str, ...] | None = None

    @property
    def problem(self) -> str:
        """Why this is not a regular file; "" = it is one."""
        if not self.exists:
            return "does not exist"
        return "" if self.kind is FileKind.FILE else f"is {self.kind}, not a regular file"


NO_FILE = FileFacts(exists=False)


#: Severity, path of the key, message.
Finding = tuple[Severity, str, str]
