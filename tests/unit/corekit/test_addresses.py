"""Addresses that no request on a user's behalf may reach."""

import pytest

from corekit.addresses import refused_address


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "[fe80::1]",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "100.100.100.200",
    ],
)
def test_link_local_and_metadata_addresses_are_refused(address: str) -> None:
    assert refused_address(address)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.7", "::1", "2001:db8::1", "hooks.example", "", "fd12::1", "1.2.3"],
)
def test_others_and_names_are_not(address: str) -> None:
    assert not refused_address(address)
