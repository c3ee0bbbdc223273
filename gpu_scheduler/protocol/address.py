"""Addresses as people write them: `host:port`."""

from __future__ import annotations

from corekit.errors import invalid


def parse_address(text: str) -> tuple[str, int]:
    """`"host:port"` → its parts. Raises INVALID."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise invalid(f"{text!r} is not an address; write host:port, as 127.0.0.1:4700")
    return host.strip("[]"), int(port)
