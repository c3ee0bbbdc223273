"""Addresses as people write them: `host:port`."""

from __future__ import annotations

import ipaddress

from corekit.errors import invalid


def parse_address(text: str) -> tuple[str, int]:
    """`"host:port"` → its parts. Raises INVALID."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise invalid(f"{text!r} is not an address; write host:port, as 127.0.0.1:4700")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """True for an address or name that always means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
