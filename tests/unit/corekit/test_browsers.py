"""Which requests come from web pages of other sites."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.net.browsers import foreign_part

REACHED = "192.0.2.7"


def header_that_is_foreign(headers: dict[str, str], method: str = "GET") -> str:
    found = foreign_part(method, headers, REACHED, ("docker.internal",))
    return found.header if found is not None else ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:1",
        "a.b.localhost:80",
        "127.0.0.1:1",
        "127.9.9.9",
        "[::1]:1",
        "192.0.2.7:1",
        "docker.internal:1",
        "bucket.docker.internal",
        "localhost.",
    ],
)
def test_names_of_this_machine(host: str) -> None:
    assert header_that_is_foreign({"Host": host}) == ""
    assert header_that_is_foreign({"Host": host, "Origin": f"http://{host}"}, "POST") == ""


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evillocalhost",
        "192.0.2.8",
        "8.8.8.8:80",
        "notdocker.internal",
        "[",
        "[::1",
        ":80",
        "@",
        "localhost@evil.example",
    ],
)
def test_names_of_others(host: str) -> None:
    assert header_that_is_foreign({"Host": host}) == "Host"
    assert header_that_is_foreign({"Origin": f"https://{host}"}) == "Origin"


def test_a_request_without_headers_is_not_from_a_browser() -> None:
    assert header_that_is_foreign({}) == ""
    assert foreign_part("GET", {"Origin": "null"}, "") is not None


def test_only_a_followed_link_may_cross_sites_without_origin() -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert header_that_is_foreign({**link, "Sec-Fetch-Dest": "document"}) == ""
    assert header_that_is_foreign({**link, "Sec-Fetch-Dest": "document"}, "POST") != ""
    assert header_that_is_foreign({**link, "Sec-Fetch-Dest": "iframe"}) != ""
    assert header_that_is_foreign({"Sec-Fetch-Site": "same-origin"}) == ""


@given(st.text(max_size=40))
def test_any_text_has_an_answer(text: str) -> None:
    """Never an exception: the text comes from strangers."""
    foreign_part("GET", {"Host": text}, REACHED)
    foreign_part("GET", {"Origin": text}, "")
