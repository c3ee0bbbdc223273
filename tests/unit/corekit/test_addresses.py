"""Addresses: host and port, and which hosts mean this machine."""

from __future__ import annotations

import pytest

from corekit.errors import AppError
from corekit.net.addresses import address_of, is_loopback, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:4700", ("127.0.0.1", 4700)),
        ("gpu-a:0", ("gpu-a", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, parts: tuple[str, int]) -> None:
    assert parse_address(text) == parts


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1"])
def test_a_malformed_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(AppError, match=r"write host:port, as 127\.0\.0\.1:4700"):
        parse_address(text)


def test_a_list_of_addresses_has_each_one_once() -> None:
    assert parse_addresses("a:1, b:2,a:1") == (("a", 1), ("b", 2))
    assert parse_addresses("a:1") == (("a", 1),)


@pytest.mark.parametrize("text", ["", "a:1,", "a:1,,b:2", "a:1,b"])
def test_a_malformed_list_is_refused(text: str) -> None:
    with pytest.raises(AppError, match="write host:port"):
        parse_addresses(text)


@pytest.mark.parametrize("url", ["http://127.0.0.1:80", "http://127.0.0.1:80/", "127.0.0.1:80"])
def test_a_url_has_an_address(url: str) -> None:
    assert address_of(url) == "127.0.0.1:80"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::1%lo", "::ffff:127.0.0.1"])
def test_a_loopback_address_means_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "::", "example.org", "127.0.0.1.evil", ""])
def test_other_hosts_do_not_mean_this_machine(host: str) -> None:
    assert not is_loopback(host)


def test_localhost_means_this_machine() -> None:
    assert is_loopback("localhost")
