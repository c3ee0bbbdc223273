"""The master key and the secrets of leases made from it.

The key is a 0600 file beside the journal, or an entry of a secret store, never in the journal and
never on a host. The leader and its standbys need the same one. The secret of a lease on
a host is HMAC-SHA256(key, lease ‖ 0 ‖ fence ‖ 0 ‖ host), so a restarted daemon derives it again.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path

from corekit.aio.files import replace_file
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.access.sources import FileSecret, SecretSource
from gpu_scheduler.daemon.log.engines.file import NAME as JOURNAL_NAME
from gpu_scheduler.daemon.log.sync_marker import NAME as MARKER_NAME

NAME = "master.key"
KEY_BYTES = 32


class LeaseSecrets:
    """Makes the secret of any lease on any host."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")

    @classmethod
    def open(
        cls, folder: Path, source: SecretSource | None = None, history: str | None = None
    ) -> LeaseSecrets:
        """Read the key. Without a source it is in the state folder, and made for a new one.

        `history`: a log that is not empty.

        Raises DENIED when others may read it, INVALID when it is damaged, NOT_FOUND when there is
        a journal but no key: the holders of its leases could not authenticate any more.
        """
        if source is None:
            source = FileSecret(_own_file(folder, history))
        source.refresh()
        return cls(_key_in(source))

    @property
    def fingerprint(self) -> str:
        """A name of the key, by which two daemons compare theirs; it does not reveal the key."""
        return self.of("fingerprint", 0, "")[:16]

    def of(self, lease: str, fence: int, host: str) -> str:
        """The secret, as hex of its 32 bytes."""
        made = self._keyed.copy()  # three times as fast as hmac.new with the key
        made.update(f"{lease}\0{fence}\0{host}".encode())
        return made.hexdigest()


def _own_file(folder: Path, history: str | None) -> Path:
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
    return path


def _key_in(source: SecretSource) -> bytes:
    content = source.read()
    if len(content) == KEY_BYTES:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        key = content
    if len(key) != KEY_BYTES:
        text = f"{source.name} holds {len(content)} bytes instead of {KEY_BYTES}, or of"
        text += f" {2 * KEY_BYTES} hex digits; restore the master key from a copy"
        raise invalid(text)
    return key
