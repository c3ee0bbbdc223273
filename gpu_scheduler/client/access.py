"""A program's access to the endpoints of ssgmd: its key, and the CA of ssgmd's certificate.

One function decides for every client (ssgm, ssgm-monitor, gpud, the orchestrator):
`find_access(key_file=…, ca=…)`, by flag, else by variable, else none. A `Channel` that is given no
`Access` calls it, so a program uses the key of its environment without code of its own.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.client.joining import IamJoin
from gpu_scheduler.protocol.keys import name_of, session_of

#: The key itself, as services get it from a secret store.
KEY_VARIABLE = "ORCHGPU_SCHEDULER_KEY"
#: A 0600 file that holds the key.
KEY_FILE_VARIABLE = "ORCHGPU_SCHEDULER_KEY_FILE"
#: PEM file of the authority that signed ssgmd's certificate; with it the connection is TLS 1.3.
CA_VARIABLE = "ORCHGPU_SCHEDULER_CA"
#: A key file is one short line.
KEY_FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The key to present to ssgmd, and the CA to trust."""

    key: str | None = field(default=None, repr=False)  #: `<name>.<secret>`; None: loopback only
    ca: Path | None = None  #: None: no TLS
    source: IamJoin | None = None  #: of keys that expire, instead of `key`

    def __post_init__(self) -> None:
        if self.key is not None and name_of(self.key) is None:
            raise invalid(
                "the scheduler's key is not a valid key; use the one that `ssgmd keys add` printed"
            )

    @property
    def current_key(self) -> str | None:
        """The key for the next hello."""
        return self.key if self.source is None else self.source.key

    def session(self, session: str) -> str:
        """The name of a session at ssgmd; with a key, it contains the key's name."""
        name = None if self.key is None else name_of(self.key)
        return session if name is None else session_of(name, session)

    def tls(self) -> ssl.SSLContext | None:
        """The context for a connection; None without a CA. Raises INVALID for an unusable file."""
        if self.ca is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(cafile=self.ca)
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or "it is not a certificate in PEM form"
            raise invalid(f"cannot use {self.ca} as the scheduler's CA: {reason}") from None
        return context


def find_access(
    *,
    key_file: Path | None = None,
    ca: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Access:
    """The access of a program: by its flags, else by its environment, else neither key nor TLS.

    Raises INVALID for a malformed key or an unusable file, DENIED for a key file that others may
    read.
    """
    named = environment.get(KEY_FILE_VARIABLE)
    if key_file is not None:
        key: str | None = _read(key_file)
    elif environment.get(KEY_VARIABLE):
        key = environment[KEY_VARIABLE].strip()
    else:
        key = _read(Path(named)) if named else None
    if ca is None and environment.get(CA_VARIABLE):
        ca = Path(environment[CA_VARIABLE])
    return Access(key=key, ca=ca)


def _read(path: Path) -> str:
    try:
        mode = path.stat().st_mode & 0o777
        with path.open("rb") as file:
            text = file.read(KEY_FILE_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise invalid(f"cannot read the key file {path}: {reason}") from None
    if mode & 0o077:
        text = f"{path} may be read by others (mode {mode:o}); run: chmod 600 {path}"
        raise AppError(ErrorCode.DENIED, text)
    if name_of(text) is None:
        raise invalid(f"{path} holds no key; write into it the key that `ssgmd keys add` printed")
    return text
