"""The console's own certificate."""

from __future__ import annotations

import ssl
from pathlib import Path

from corekit.errors import AppError, ErrorCode, invalid


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and newer, which browsers speak.

    Raises INVALID for unusable files, DENIED for a private key that everyone may read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        mode = key.stat().st_mode & 0o777
        if mode & 0o007:
            text = f"{key} is world-readable (mode {mode:o}); run: chmod o= {key}"
            raise AppError(ErrorCode.DENIED, text)
        # an encrypted key would prompt for its passphrase: an empty one refuses it
        context.load_cert_chain(cert, key, password="")
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or "they are not a matching certificate and key in PEM format"
        raise invalid(f"cannot use {cert} and {key} for TLS: {reason}") from None
    return context
