"""Strict decoding: exact messages, exact types, round trip."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.decode import decode, decode_json, encode, encode_json, read_json
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value, field


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Value):
    size_mib: int
    share: float = 0.5


class Outer(Value):
    name: str
    inners: tuple[Inner, ...] = ()
    colour: Colour | None = None
    flags: Mapping[str, bool] = field(default_factory=dict)
    opaque: Any = None

    def __post_init__(self) -> None:
        if self.name == "nobody":
            raise invalid("name must be somebody's")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "Outer: expected an object, got []"),
        ({}, "Outer: missing key 'name'"),
        ({"name": 3}, "Outer.name: expected a string, got 3"),
        ({"nmae": "x"}, "Outer: unknown key 'nmae'; did you mean 'name'?"),
        ({"name": "x", "inners": {}}, "Outer.inners: expected a list, got {}"),
        (
            {"name": "x", "inners": [{"size_mib": True}]},
            "Outer.inners[0].size_mib: expected an integer, got True",
        ),
        (
            {"name": "x", "inners": [{"size_mib": 1, "share": float("nan")}]},
            "Outer.inners[0].share: expected a number, got nan",
        ),
        (
            {"name": "x", "colour": "rde"},
            "Outer.colour: 'rde' is not one of red, blue; did you mean 'red'?",
        ),
        ({"name": "x", "flags": {"a": 1}}, "Outer.flags.a: expected true or false, got 1"),
        ({"name": "x", "opaque": float("inf")}, "Outer.opaque: expected a number, got inf"),
        ({"name": "nobody"}, "Outer: name must be somebody's"),
        (
            {"name": "x", "inners": [{"size_mib": 1, "share": 10**400}]},
            f"Outer.inners[0].share: expected a number, got 1{'0' * 56}...",
        ),
    ],
)
def test_says_what_where_and_the_likely_word(value: Any, message: str) -> None:
    with pytest.raises(AppError) as caught:
        decode(Outer, value)
    assert caught.value.message == message
    assert caught.value.code is ErrorCode.INVALID


def test_deep_nesting_is_refused_before_it_is_walked() -> None:
    value: Any = 1
    for _ in range(80):
        value = [value]
    with pytest.raises(AppError, match="nested deeper"):
        decode(Outer, {"name": "x", "opaque": value})


@given(
    st.builds(
        Outer,
        name=st.text(),
        inners=st.lists(
            st.builds(
                Inner,
                size_mib=st.integers(),
                share=st.floats(allow_nan=False, allow_infinity=False),
            )
        ).map(tuple),
        colour=st.none() | st.sampled_from(Colour),
        flags=st.dictionaries(st.text(), st.booleans()),
    )
)
def test_encode_and_decode_are_inverse(value: Outer) -> None:
    assert decode(Outer, encode(value)) == value
    assert decode_json(Outer, encode_json(value)) == value


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_JSON)
def test_any_json_gives_a_value_or_a_typed_error(value: Any) -> None:
    with suppress(AppError):  # and nothing else
        decode(Outer, value)


# ---------------------------------------------------------------------- text and plain data

_ODD = st.sampled_from(
    [
        True,
        0,
        -1,
        1.0,
        10**30,
        10**400,
        2**64,
        1e999,
        float("nan"),
        "",
        "red",
        "nobody",
        [],
        {},
        [1, [2]],
        {"a": {"b": [None]}},
        {"size_mib": 1},
        [{"size_mib": 1, "share": 1}],
    ]
)
_NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=3) | _ODD,
        "inners": _ODD
        | st.lists(
            st.fixed_dictionaries(
                {"size_mib": st.integers() | _ODD},
                optional={"share": st.floats() | _ODD},
            ),
            max_size=2,
        ),
        "colour": st.sampled_from(["red", "blue", None]) | _ODD,
        "flags": st.dictionaries(st.text(max_size=2), st.booleans() | _ODD, max_size=2) | _ODD,
        "opaque": _JSON | _ODD,
        "opaqe": st.none(),
    },
)


def said(call: Callable[[], Any]) -> Any:
    """The value, or the message of the refusal."""
    try:
        return call()
    except AppError as error:
        return error.message


@given(_NEARLY)
def test_text_and_plain_data_are_read_alike(value: Any) -> None:
    expected = said(lambda: decode(Outer, value))
    read = read_json(Outer, json.dumps(value).encode())
    assert read == (None if isinstance(expected, str) else expected)
    assert read is None or type(read.inners) is tuple


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"nothing",
        b'{"name": "x"} y',
        b'{"name": "a\tb"}',
        b'{"name": "\xff"}',
        b'{"name": "x", "opaque": NaN}',
        b"[" * 100_000,
        b'{"name": "\xed\xa0\x80"}',
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(AppError) as caught:
        decode_json(Outer, text)
    assert caught.value.message.startswith("Outer")
