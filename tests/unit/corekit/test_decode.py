"""Strict decoding: exact messages, exact types, round trip."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.decode import decode, encode
from corekit.errors import AppError, ErrorCode


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    size_mib: int
    share: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str
    inners: tuple[Inner, ...] = ()
    colour: Colour | None = None
    flags: Mapping[str, bool] = field(default_factory=dict)
    opaque: Any = None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "Outer: expected an object, got []"),
        ({}, "Outer: missing key 'name'"),
        ({"name": 3}, "Outer.name: expected a string, got 3"),
        ({"nmae": "x"}, "Outer: unknown key 'nmae'; did you mean 'name'?"),
        ({"name": "x", "inners": {}}, "Outer.inners: expected a list, got {}"),
        ({"name": "x", "inners": [{"size_mib": True}]},
         "Outer.inners[0].size_mib: expected a whole number, got True"),
        ({"name": "x", "inners": [{"size_mib": 1, "share": float("nan")}]},
         "Outer.inners[0].share: expected a number, got nan"),
        ({"name": "x", "colour": "rde"},
         "Outer.colour: 'rde' is not one of red, blue; did you mean 'red'?"),
        ({"name": "x", "flags": {"a": 1}}, "Outer.flags.a: expected true or false, got 1"),
        ({"name": "x", "opaque": float("inf")}, "Outer.opaque: a number must be finite"),
    ],
)  # fmt: skip
def test_says_what_where_and_the_likely_word(value: Any, message: str) -> None:
    with pytest.raises(AppError) as caught:
        decode(Outer, value)
    assert caught.value.message == message
    assert caught.value.code is ErrorCode.INVALID


def test_deep_nesting_is_refused_before_it_is_walked() -> None:
    value: Any = 1
    for _ in range(40):
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


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_JSON)
def test_any_json_gives_a_value_or_a_typed_error(value: Any) -> None:
    with suppress(AppError):  # and nothing else
        decode(Outer, value)
