"""TLS of a host: one certificate, sent to clients within the proof of their lease's secret."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.addresses import is_loopback
from remote_gpu.client.transport.tls import server_context
from remote_gpu.wire.proof import AUTHORITY_CHARACTERS_MAX

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTls:
    """Certificate and key with which the gateway and its workers serve TLS."""

    certificate: Path
    key: Path
    required: bool  #: for programs of this machine too; those of other machines always use it
    authority: str  #: PEM; trusted by clients
    context: ssl.SSLContext

    @classmethod
    def load(cls, certificate: Path, key: Path, *, required: bool) -> Self:
        """Raises INVALID unless both files match, DENIED for a world-readable key."""
        try:
            authority = certificate.read_text(encoding="ascii", errors="replace")
            mode = key.stat().st_mode & 0o777
            if mode & 0o007:
                text = f"{key} is world-readable (mode {mode:o}); run: chmod o= {key}"
                raise AppError(ErrorCode.DENIED, text)
            context = server_context(certificate, key)
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or "they are not a matching certificate and key in PEM form"
            raise invalid(f"cannot use {certificate} and {key} for TLS: {reason}") from None
        # the host's own certificate is the first one; its key may be in the same file
        authority = _BEGIN + authority.partition(_BEGIN)[2].partition(_END)[0] + _END
        if len(authority) > AUTHORITY_CHARACTERS_MAX:
            text = f"{certificate}: a certificate of {len(authority)} characters is too large for"
            raise invalid(f"{text} a hello ({AUTHORITY_CHARACTERS_MAX}); use an elliptic curve's")
        return cls(
            certificate=certificate.resolve(),
            key=key.resolve(),
            required=required,
            authority=authority,
            context=context,
        )

    def authority_for(self, source: str) -> str:
        """The authority for a client at an address; "" = its connection stays plain.

        Unix sockets (no address) stay plain and, unless TLS is required, so does the loopback.
        """
        if not source:
            return ""
        return "" if not self.required and is_loopback(source) else self.authority
