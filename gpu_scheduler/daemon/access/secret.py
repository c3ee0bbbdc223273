"""The master key and the secrets of leases made from it.

The key is a 0600 file beside the journal, never in it and never on a host. The secret of a lease on
a host is HMAC-SHA256(key, lease ‖ 0 ‖ fence ‖ 0 ‖ host): it can be made again after a restart.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.journal.journal import NAME as JOURNAL_NAME
from gpu_scheduler.daemon.journal.sync_marker import NAME as MARKER_NAME

NAME = "master.key"
KEY_BYTES = 32


class Secrets:
    """Makes the secret of any lease on any host."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")

    @classmethod
    def open(cls, folder: Path) -> Secrets:
        """Read the key, or make one for a new state folder.

        Raises DENIED when others may read it, INVALID when it is damaged, NOT_FOUND when there is
        a journal but no key: its leases could not be proved any more.
        """
        path = folder / NAME
        if not path.exists():
            if any((folder / name).exists() for name in (JOURNAL_NAME, MARKER_NAME)):
                text = f"{path} is missing, but {folder} holds a journal; restore the key from a"
                text += f" copy, or remove {JOURNAL_NAME} and {MARKER_NAME} if its leases and jobs"
                text += " may be lost"
                raise AppError(ErrorCode.NOT_FOUND, text)
            _create(path)
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            text = f"{path} may be read by others (mode {mode:o}); run: chmod 600 {path}"
            raise AppError(ErrorCode.DENIED, text)
        key = path.read_bytes()
        if len(key) != KEY_BYTES:
            text = f"{path} holds {len(key)} bytes instead of {KEY_BYTES}; restore it from a copy"
            raise AppError(ErrorCode.INVALID, text)
        return cls(key)

    def of(self, lease: str, fence: int, host: str) -> str:
        """Hex of the 32 bytes."""
        made = self._keyed.copy()  # a third of the time that begins with the key
        made.update(f"{lease}\0{fence}\0{host}".encode())
        return made.hexdigest()


def _create(path: Path) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, secrets.token_bytes(KEY_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
    new.replace(path)
