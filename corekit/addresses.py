"""Network addresses that no request on a user's behalf may reach. Pure."""

from __future__ import annotations

import ipaddress

#: Metadata and credentials at other addresses than link-local ones: AWS (IPv6: instances and pods),
#: Alibaba and Oracle.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd00:ec2::23", "100.100.100.200", "192.0.0.192"),
    )
)
#: An IPv4 address inside of an IPv6 one: NAT64 (RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def refused_address(text: str) -> bool:
    """Whether it is an address of link-local, metadata, multicast or no host at all.

    Credentials of machines and containers are served there. A name is not an address: False.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0].strip("[]"))
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address in _NAT64:
            address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    refused = address.is_link_local or address.is_multicast or address.is_unspecified
    return refused or address in _METADATA
