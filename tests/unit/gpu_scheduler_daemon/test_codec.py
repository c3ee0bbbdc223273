"""The codec: any bytes become a message or a typed error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.decode import decode, encode_json
from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId, LeaseId
from gpu_scheduler.model import Request
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.codec import (
    LINE_BYTES_MAX,
    BrokenFrame,
    LineBuffer,
    decode_line,
    encode_line,
    error_line,
    ok_line,
    push_line,
    read_answer,
    read_request,
    request_line,
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
    """The result, or the AppError that was raised."""
    try:
        return call()
    except AppError as error:
        return error


@settings(max_examples=50)
@given(st.binary(max_size=300))
def test_any_bytes_are_an_object_or_a_broken_frame(data: bytes) -> None:
    for line in LineBuffer().feed(data + b"\n"):
        with contextlib.suppress(BrokenFrame):
            assert isinstance(decode_line(line), dict)


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.text(max_size=3), _JSON, max_size=2), max_size=4), st.data())
def test_lines_survive_any_cutting_of_the_stream(values: list[Any], data: Any) -> None:
    stream = b"".join(encode_line(value) for value in values)
    lines, buffer = [], LineBuffer()
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        lines += buffer.feed(stream[:cut])
        stream = stream[cut:]
    assert [decode_line(line) for line in lines] == [json.loads(json.dumps(v)) for v in values]


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(["id", "op", "holder", "n", "x"]), _JSON))
def test_any_object_is_a_request_or_invalid(value: dict[str, Any]) -> None:
    frame = outcome_of(lambda: read_request(json.dumps(value).encode()))
    if isinstance(frame, AppError):
        assert frame.code is ErrorCode.INVALID
        assert json.loads(error_line(frame.details["id"], frame))["error"]["code"] == "invalid"
    else:
        assert frame.id >= 0


@settings(max_examples=50)
@given(st.sampled_from(sorted(ops.OPS)), st.dictionaries(st.text(max_size=9), _JSON))
def test_any_fields_are_an_op_or_invalid(op: str, fields: dict[str, Any]) -> None:
    cls: type[Any] = ops.OPS[op]
    value = outcome_of(lambda: decode(cls, fields, op))
    line = request_line(7, op, fields)
    frame = read_request(line)
    read = outcome_of(lambda: frame.body.read(cls, op))
    assert (frame.id, frame.op) == (7, op)
    if isinstance(value, AppError):
        assert value.code is ErrorCode.INVALID
        assert value.message.startswith(op)
        assert read.message == value.message
    else:
        assert read == value
        assert read_request(request_line(8, op, value)).body.read(cls, op) == value


def test_a_line_is_bounded_in_both_directions() -> None:
    with pytest.raises(BrokenFrame, match="longer than"):
        LineBuffer().feed(b"x" * (LINE_BYTES_MAX + 1))
    with pytest.raises(AppError, match="exceeds"):
        encode_line({"x": "y" * LINE_BYTES_MAX})


@pytest.mark.parametrize(
    "line", [b'{"a": NaN}', b'{"a": Infinity}', b"[1]", b"", b'["\\ud83d"]', b"[" * 100_000]
)
def test_a_value_that_is_not_a_finite_object_breaks_the_frame(line: bytes) -> None:
    with pytest.raises(BrokenFrame):
        decode_line(line)


@pytest.mark.parametrize(
    "tail", [b'"x": NaN}', b'"x": "\xff"}', b'"x": 1e999, "y": tru}', b'"x": {}']
)
def test_a_frame_that_is_broken_behind_its_head_breaks_too(tail: bytes) -> None:
    with pytest.raises(BrokenFrame):
        read_request(b'{"id": 1, "op": "renew", ' + tail).body.read(ops.Renew, "renew")


def test_answers_errors_and_pushes_come_back_as_they_were_sent() -> None:
    renew = ops.Renew(lease=LeaseId("l"))
    answer = read_answer(ok_line(3, encode_json(renew)).rstrip())
    assert (answer.id, answer.push, answer.error) == (3, None, None)
    assert answer.body.read(ops.Renew) == renew
    assert read_answer(b'{"id":4,"ok":{}}').body.read(ops.Beat) == ops.Beat()
    refusal = AppError(ErrorCode.CONFLICT, "no", record={"a": 1})
    error = read_answer(error_line(None, refusal)).error
    assert error is not None
    assert error.as_json() == refusal.as_json()
    push = read_answer(push_line("handle", encode_json(renew)))
    assert push.push == "handle"
    assert push.body.read(ops.Renew) == renew
    assert read_answer(push_line("x", b"{}")).body.plain() == {}


@settings(max_examples=50)
@given(
    st.binary(max_size=99)
    | st.dictionaries(st.sampled_from(["id", "ok", "error", "push"]), _JSON).map(
        lambda v: json.dumps(v).encode()
    )
)
def test_any_bytes_are_an_answer_or_a_broken_frame(line: bytes) -> None:
    with contextlib.suppress(BrokenFrame):
        read_answer(line)


def test_an_unknown_field_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(AppError, match=r"attempt: unknown key 'holdr'; did you mean 'holder'\?"):
        decode(ops.Attempt, {"holdr": "j"}, "attempt")


def test_explain_takes_exactly_one_question() -> None:
    with pytest.raises(AppError, match="exactly one"):
        ops.Explain()
    with pytest.raises(AppError, match="exactly one"):
        ops.Explain(attempt=AttemptId("a"), request=Request())
