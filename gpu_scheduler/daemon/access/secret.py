"""The master key and the secrets of leases made from it.

The key is a 0600 file beside the journal, never in it and never on a host. The secret of a lease on
a host is HMAC-SHA256(key, lease ‖ 0 ‖ fence ‖ 0 ‖ host), so a restarted daemon derives it again.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path

from corekit.aio.files import replace_file
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
    def open(cls, folder: Path, history: str | None = None) -> Secrets:
        """Read the key, or make one for a new state folder. `history`: a log that is not empty.

        Raises DENIED when others may read it, INVALID when it is damaged, NOT_FOUND when there is
        a journal but no key: the holders of its leases could not authenticate any more.
        """
        path = folder / NAME
        if not path.exists():
            if history is not None:
                text = f"{path} is missing, but {history} holds a journal; copy the key from the"
                text += " machine that wrote it, or give another log if its leases may be lost"
                raise AppError(ErrorCode.NOT_FOUND, text)
            if any((folder / name).exists() for name in (JOURNAL_NAME, MARKER_NAME)):
                text = f"{path} is missing, but {folder} holds a journal; restore the key from a"
                text += f" copy, or remove {JOURNAL_NAME} and {MARKER_NAME} if its leases and jobs"
                text += " may be lost"
                raise AppError(ErrorCode.NOT_FOUND, text)
            replace_file(path, secrets.token_bytes(KEY_BYTES))
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            text = f"{path} is readable by others (mode {mode:o}); run: chmod 600 {path}"
            raise AppError(ErrorCode.DENIED, text)
        key = path.read_bytes()
        if len(key) != KEY_BYTES:
            text = f"{path} holds {len(key)} bytes instead of {KEY_BYTES}; restore it from a copy"
            raise AppError(ErrorCode.INVALID, text)
        return cls(key)

    def of(self, lease: str, fence: int, host: str) -> str:
        """The secret, as hex of its 32 bytes."""
        made = self._keyed.copy()  # three times as fast as hmac.new with the key
        made.update(f"{lease}\0{fence}\0{host}".encode())
        return made.hexdigest()
