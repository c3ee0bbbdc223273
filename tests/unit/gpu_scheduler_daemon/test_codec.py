"""The codec: any bytes become a message or a typed error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.decode import decode, encode
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import Request
from gpu_scheduler.protocol import requester
from gpu_scheduler.protocol.codec import (
    LINE_BYTES_MAX,
    BrokenFrame,
    LineBuffer,
    decode_line,
    encode_line,
    error_line,
    request_of,
)

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)


def outcome_of(call: Callable[[], Any]) -> Any:
    """What it returned, or the AppError it raised."""
    try:
        return call()
    except AppError as error:
        return error


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=300))
def test_any_bytes_are_an_object_or_a_broken_frame(data: bytes) -> None:
    for line in LineBuffer().feed(data + b"\n"):
        with contextlib.suppress(BrokenFrame):
            assert isinstance(decode_line(line), dict)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.dictionaries(st.text(max_size=3), _JSON, max_size=2), max_size=4), st.data())
def test_lines_survive_any_cutting_of_the_stream(values: list[Any], data: Any) -> None:
    stream = b"".join(encode_line(value) for value in values)
    lines, buffer = [], LineBuffer()
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        lines += buffer.feed(stream[:cut])
        stream = stream[cut:]
    assert [decode_line(line) for line in lines] == [json.loads(json.dumps(v)) for v in values]


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.sampled_from(["id", "op", "holder", "n", "x"]), _JSON))
def test_any_object_is_a_request_or_invalid(value: dict[str, Any]) -> None:
    frame = outcome_of(lambda: request_of(value))
    if isinstance(frame, AppError):
        assert frame.code is ErrorCode.INVALID
        assert json.loads(error_line(frame.details["id"], frame))["error"]["code"] == "invalid"
    else:
        assert frame.id >= 0


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(sorted(requester.OPS)), st.dictionaries(st.text(max_size=9), _JSON))
def test_any_fields_are_an_op_or_invalid(op: str, fields: dict[str, Any]) -> None:
    cls: type[Any] = requester.OPS[op]
    value = outcome_of(lambda: decode(cls, fields, op))
    if isinstance(value, AppError):
        assert value.code is ErrorCode.INVALID
        assert value.message.startswith(op)
    else:
        assert decode(cls, encode(value), op) == value


def test_a_line_is_bounded_in_both_directions() -> None:
    with pytest.raises(BrokenFrame, match="longer than"):
        LineBuffer().feed(b"x" * (LINE_BYTES_MAX + 1))
    with pytest.raises(AppError, match="exceeds"):
        encode_line({"x": "y" * LINE_BYTES_MAX})


@pytest.mark.parametrize(
    "line", [b'{"a": NaN}', b'{"a": Infinity}', b"[1]", b"", b'{"a": "\\ud83d"}', b"[" * 100_000]
)
def test_what_is_no_finite_object_breaks_the_frame(line: bytes) -> None:
    with pytest.raises(BrokenFrame):
        decode_line(line)


def test_an_unknown_field_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(AppError, match=r"attempt: unknown key 'holdr'; did you mean 'holder'\?"):
        decode(requester.Attempt, {"holdr": "j"}, "attempt")


def test_a_deadline_hold_needs_its_length() -> None:
    with pytest.raises(AppError, match="lease_s"):
        decode(requester.Reserve, {"attempt": "a", "request": {}, "hold": "deadline"}, "reserve")


def test_explain_takes_exactly_one_question() -> None:
    with pytest.raises(AppError, match="exactly one"):
        requester.Explain()
    with pytest.raises(AppError, match="exactly one"):
        requester.Explain(attempt="a", request=Request())
