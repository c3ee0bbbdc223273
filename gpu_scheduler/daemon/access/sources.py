"""Sources of ssgmd's secrets: a file, or an entry of a secret store.

    /etc/ssgmd/keys.json                 a file, mode 0600
    secretsmanager:orchgpu/keys          AWS Secrets Manager: a name or an ARN, or NAME#KEY
    ssm:/orchgpu/keys                    SSM Parameter Store: the name or ARN of a SecureString

The forms of stores are those of a function's secrets (`contract.secrets`). A standby needs the same
keys and the same master key as the leader; in a store there is one copy.
The library of a store is imported when such a source is named, and no content is ever logged.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Protocol

from contract.secrets.reference import Scheme, parse_reference
from corekit.errors import AppError, ErrorCode, invalid

#: The schemes of stores; everything else is the path of a file.
_STORES = (Scheme.SECRETS_MANAGER.value, Scheme.PARAMETER_STORE.value)
#: Makes the `Fetch` of a reference; it imports boto3.
_AWS = "gpu_scheduler.daemon.access.aws_secrets"

#: Reads the newest content of an entry. Blocks; raises AppError.
Fetch = Callable[[], bytes]


class SecretSource(Protocol):
    """A secret that may be replaced while the daemon runs."""

    name: str  #: for messages

    def refresh(self) -> None:
        """Look for a newer content. Blocks; callable from any thread. Raises AppError."""
        ...

    def stamp(self) -> Hashable | None:
        """A value that differs for another content; None: there is none."""
        ...

    def read(self) -> bytes:
        """The content. Raises INVALID, DENIED for a file that others may read."""
        ...


class FileSecret:
    """A file, read again when its date changes."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def refresh(self) -> None:
        """Do nothing: `stamp` reads the file's date."""

    def stamp(self) -> Hashable | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def read(self) -> bytes:
        try:
            mode = self._path.stat().st_mode & 0o777
            content = self._path.read_bytes()
        except OSError as error:
            raise invalid(f"cannot read {self.name}: {error.strerror or error}") from None
        if mode & 0o077:
            text = f"{self.name} is readable by others (mode {mode:o}); run: chmod 600 {self.name}"
            raise AppError(ErrorCode.DENIED, text)
        return content


class StoredSecret:
    """An entry of a secret store; its content stays in memory between two calls of `refresh`."""

    def __init__(self, name: str, fetch: Fetch) -> None:
        self.name = name
        self._fetch = fetch
        self._content: bytes | None = None

    def refresh(self) -> None:
        self._content = self._fetch()

    def stamp(self) -> Hashable | None:
        return self._content

    def read(self) -> bytes:
        if self._content is None:
            raise invalid(f"{self.name} has not been read yet")
        return self._content


def is_stored(text: str) -> bool:
    """Whether `text` names an entry of a secret store, not a file."""
    return text.partition(":")[0] in _STORES


def source_of(text: str) -> SecretSource:
    """The source with this name. Raises INVALID for one without a valid name behind its scheme."""
    if not is_stored(text) or ":" not in text:
        return FileSecret(Path(text))
    try:
        reference = parse_reference(text)
    except ValueError as error:
        raise invalid(f"{text!r}: {error}") from None
    fetch: Fetch = importlib.import_module(_AWS).fetch_of(reference)
    return StoredSecret(text, fetch)
