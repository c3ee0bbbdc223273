"""TLS of both doors: 1.3 only, one certificate, read again when it was renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from corekit.errors import AppError, ErrorCode, invalid

logger = logging.getLogger(__name__)


class Certificate:
    """The daemon's certificate chain and private key, as PEM files."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises INVALID for files that hold none, DENIED for a key that everybody may read."""
        self._cert, self._key = cert, key
        self._seen: tuple[int, ...] = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._read()

    def reread_if_changed(self) -> None:
        """A renewed certificate is for new connections; an unusable one leaves the last in force.

        Certificate and key are renewed one after the other: between the two they do not match.
        """
        try:
            if self._stamp() != self._seen:
                self._read()
                logger.info("certificate read again", extra={"event": "certificate"})
        except (OSError, AppError) as error:
            logger.error("the certificate in force stays: %s", error, extra={"event": "tls"})

    def _stamp(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in (self._cert, self._key))

    def _read(self) -> None:
        try:
            self._seen = self._stamp()
            mode = self._key.stat().st_mode & 0o777
            if mode & 0o007:
                text = f"{self._key} may be read by everybody (mode {mode:o}); run: chmod o= "
                raise AppError(ErrorCode.DENIED, f"{text}{self._key}")
            # a locked key would ask a terminal for its passphrase: refuse it instead
            self.context.load_cert_chain(self._cert, self._key, password="")
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or "they are no certificate and key in PEM form that match"
            text = f"cannot use {self._cert} and {self._key} for TLS: {reason}"
            raise invalid(text) from None
