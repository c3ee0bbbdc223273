"""TLS of both endpoints: 1.3 only, one certificate, read again when it is renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from corekit.errors import AppError, ErrorCode, invalid

logger = logging.getLogger(__name__)


class Certificate:
    """The daemon's certificate chain and private key, as PEM files."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises INVALID for unusable files, DENIED for a private key that is world-readable."""
        self._cert, self._key = cert, key
        self._seen: tuple[int, ...] = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._read()

    def reread_if_changed(self) -> None:
        """Use a renewed certificate for new connections; the last one while it is unusable.

        Certificate and key are renewed one after the other: in between they do not match.
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
                text = f"{self._key} is world-readable (mode {mode:o}); run: chmod o= "
                raise AppError(ErrorCode.DENIED, f"{text}{self._key}")
            # an encrypted key would prompt for its passphrase: an empty one refuses it
            self.context.load_cert_chain(self._cert, self._key, password="")
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or "they are not a matching certificate and key in PEM format"
            text = f"cannot use {self._cert} and {self._key} for TLS: {reason}"
            raise invalid(text) from None
