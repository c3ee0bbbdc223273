"""What lint says: findings with severity and place, and the facts it is told about files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fdl.text.nodes import Location


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"  #: how it is, and nothing to do about it


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding."""

    severity: Severity
    path: str  #: of the key it is about
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What the caller found where a path of the document points."""

    exists: bool = True
    kind: FileKind = FileKind.FILE
    executable: bool = True
    first_line: bytes = b""  #: with its line end
    crlf: bool = False  #: some line ends in CR LF
    #: Names that a Python module binds at its top; None = it was not looked at, or is no Python.
    defines: tuple[str, ...] | None = None


#: Severity, path of the key, message.
Finding = tuple[Severity, str, str]
