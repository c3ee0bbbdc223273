"""Addresses as people write them, `host:port`, and those that mean this machine. Pure."""

from __future__ import annotations

import ipaddress

from corekit.errors import invalid

Address = tuple[str, int]


def parse_address(text: str) -> Address:
    """The parts of `"host:port"`. Raises INVALID."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise invalid(f"{text!r} is not an address; write host:port, as 127.0.0.1:4700")
    return host.strip("[]"), int(port)


def parse_addresses(text: str) -> tuple[Address, ...]:
    """The parts of "host:port,host:port", each address once, at least one. Raises INVALID."""
    named = (one.strip() for one in text.split(","))
    return tuple(dict.fromkeys(parse_address(one) for one in named))


def address_of(url: str) -> str:
    """The `host:port` of an `http://` URL without a path, or a text that is an address already."""
    return url.removeprefix("http://").rstrip("/")


def is_loopback(host: str) -> bool:
    """True when an address or name always means this machine."""
    ip = parse_ip(host)
    return host == "localhost" if ip is None else ip.is_loopback


def parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address without its zone, and as IPv4 where it is mapped; None for a name."""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip
