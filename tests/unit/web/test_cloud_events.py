"""CloudEvents as inputs: both forms, what is their key, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corekit.errors import AppError
from orchgpu.web.api.cloud_events import (
    Event,
    binary_event,
    is_structured,
    structured_event,
)

EVENT = {"specversion": "1.0", "id": "7", "source": "/cam era", "type": "photo"}
KEY = "/cam era\x007"


def structured(**more: Any) -> Event:
    return structured_event(json.dumps({**EVENT, "time": "now", "traceid": 1, **more}).encode())


def binary(*, has_body: bool = True, **more: str) -> Event | None:
    given = {**EVENT, "source": "/cam%20era", **more}
    return binary_event({f"ce-{k}": v for k, v in given.items()}, has_body=has_body)


@pytest.mark.parametrize(
    ("more", "data"),
    [
        ({"data": {"a": [1, "ü"]}}, rb'{"a": [1, "\u00fc"]}'),
        ({"data": "text"}, b'"text"'),
        ({"data": "text", "datacontenttype": "application/vnd.x+json; charset=utf-8"}, b'"text"'),
        ({"data": "grüße", "datacontenttype": "text/plain"}, "grüße".encode()),
        ({"data": {"a": 1}, "datacontenttype": "text/plain"}, b'{"a": 1}'),
        ({"data_base64": "/wA="}, b"\xff\0"),
        ({"data": None}, b""),
        ({}, b""),
        ({"data": "text", "datacontenttype": None, "dataref": None}, b'"text"'),
    ],
)
def test_data_of_the_structured_form_is_the_input(more: dict[str, Any], data: bytes) -> None:
    assert structured(**more) == Event(key=KEY, data=data, dataref="")


def test_both_forms_have_one_key() -> None:
    assert binary() == Event(key=KEY, data=None, dataref="")
    assert binary(has_body=False, dataref="s3://b/k") == structured(dataref="s3://b/k")
    assert binary_event({"Content-Type": "text/plain"}, has_body=True) is None


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"id": ""}, "no id"),
        ({"source": "", "type": ""}, "no source, type"),
        ({"specversion": "0.3"}, "'0.3'"),
        ({"id": "x" * 2000}, "1024"),
        ({"id": "a\0b"}, "id .* cannot be printed"),
        ({"source": "a\x9b"}, "source .* cannot be printed"),
        ({"dataref": "s3://b/\0"}, "dataref .* cannot be printed"),
    ],
)
def test_attributes_that_are_refused(more: dict[str, Any], named: str) -> None:
    with pytest.raises(AppError, match=named):
        structured(**more)
    with pytest.raises(AppError, match=named):
        binary(**more)


def test_a_header_that_is_no_text_is_refused() -> None:
    """aiohttp reads such bytes as lone surrogates, which no hash takes."""
    with pytest.raises(AppError, match=r"id .* cannot be printed"):
        binary(id="\udcff")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"id": 1}',
        json.dumps({**EVENT, "data": 1, "data_base64": "eA=="}).encode(),
        json.dumps({**EVENT, "data_base64": "?"}).encode(),
        json.dumps({**EVENT, "id": None}).encode(),
        json.dumps({**EVENT, "id": "\ud800"}).encode(),
        json.dumps({**EVENT, "data": "\ud800", "datacontenttype": "text/plain"}).encode(),
        b"[" * 5000,
    ],
)
def test_bodies_that_are_refused(body: bytes) -> None:
    with pytest.raises(AppError):
        structured_event(body)


def test_types_of_content() -> None:
    assert is_structured("application/cloudevents+json")
    assert not is_structured("application/json")
    for other in ("application/cloudevents-batch+json", "application/cloudevents+xml"):
        with pytest.raises(AppError, match="each event alone"):
            is_structured(other)
