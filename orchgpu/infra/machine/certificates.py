"""Certificates by the program openssl, which every image has."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from corekit.errors import AppError, ErrorCode

_DAYS_CA, _DAYS = "3650", "825"


def authority(name: str) -> tuple[str, str]:
    """A new authority: its certificate and its private key, both PEM."""
    with tempfile.TemporaryDirectory() as folder:
        key, pem = Path(folder, "ca.key"), Path(folder, "ca.pem")
        subject = ("-subj", f"/CN={name}", "-days", _DAYS_CA)
        _openssl(
            "req", "-x509", "-newkey", "ed25519", "-noenc", *subject, "-keyout", key, "-out", pem
        )
        return pem.read_text(), key.read_text()


def signed(ca: str, ca_key: str, name: str, addresses: tuple[str, ...]) -> tuple[str, str]:
    """A certificate of an authority for IP addresses, and its private key, both PEM."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "ca.pem").write_text(ca)
        (at / "ca.key").touch(mode=0o600)
        (at / "ca.key").write_text(ca_key)
        named = ",".join([*(f"IP:{address}" for address in addresses), "DNS:localhost"])
        (at / "names").write_text(f"subjectAltName={named}\n")
        request = ("-newkey", "ed25519", "-noenc", "-subj", f"/CN={name}")
        _openssl("req", *request, "-keyout", at / "own.key", "-out", at / "own.csr")
        by = ("-CA", at / "ca.pem", "-CAkey", at / "ca.key", "-CAcreateserial", "-days", _DAYS)
        _openssl(
            "x509",
            "-req",
            "-in",
            at / "own.csr",
            *by,
            "-extfile",
            at / "names",
            "-out",
            at / "own.pem",
        )
        return (at / "own.pem").read_text(), (at / "own.key").read_text()


def own(name: str) -> tuple[str, str]:
    """A certificate that signs itself, as gateways have it, and its private key, both PEM."""
    with tempfile.TemporaryDirectory() as folder:
        key, pem = Path(folder, "own.key"), Path(folder, "own.pem")
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
        subject = ("-subj", f"/CN={name}", "-days", _DAYS_CA)
        _openssl("req", "-x509", *kind, *subject, "-keyout", key, "-out", pem)
        return pem.read_text(), key.read_text()


def _openssl(*arguments: str | Path) -> None:
    command = ["openssl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        text = f"openssl {arguments[0]} ended with {done.returncode}: {done.stderr.strip()}"
        raise AppError(ErrorCode.INTERNAL, text)
