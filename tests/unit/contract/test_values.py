"""Values as files: what goes comes back, and nothing is unpickled."""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.values import decode_value, encode_value

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
DTYPES = ["?", "i1", "<i8", ">i4", "u2", "f2", "<f4", ">f8", "c8", "S3", "<U2", "M8[s]"]


def passed_on(value: object) -> Any:
    suffix, content = encode_value(value)
    return decode_value(f"a{suffix}", content)


@given(JSON)
def test_json_comes_back_with_its_types(value: object) -> None:
    found = passed_on(value)
    assert (found, repr(found)) == (value, repr(value))


@given(st.binary())
def test_bytes_come_back(value: bytes) -> None:
    assert passed_on(value) == passed_on(bytearray(value)) == passed_on(memoryview(value)) == value


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.binary(max_size=999),
)
def test_arrays_come_back_bit_by_bit(dtype: str, shape: list[int], seed: bytes) -> None:
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    content = (seed * (size // max(1, len(seed)) + 1) + bytes(size))[:size]
    if dtype == "<U2" or dtype == "?":  # not every byte is one
        content = bytes(size)
    array = np.frombuffer(content, kind).reshape(shape)
    found = passed_on(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


def test_scalars_and_orders_of_numpy_come_back() -> None:
    assert type(passed_on(np.float32(0.5))) is np.float32
    assert passed_on(np.datetime64("2026-01-01")) == np.datetime64("2026-01-01")
    turned = np.asfortranarray(np.arange(6).reshape(2, 3))
    assert (passed_on(turned) == turned).all()
    assert np.isnan(passed_on(np.array([math.nan]))).all()
    record = np.zeros(2, dtype=[("x", "<f4"), ("n", "<i8")])
    assert passed_on(record).dtype == record.dtype


def deep() -> object:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ({1: 2}, TypeError, "the key 1 is not a string"),
        ([{"a": {(): 0}}], TypeError, "is not a string"),
        ({1, 2}, TypeError, "set: .* a value is JSON, bytes or a NumPy array"),
        (object(), TypeError, "object"),
        (deep(), TypeError, "list: "),
        (math.nan, ValueError, "not JSON compliant"),
        ([math.inf], ValueError, "not JSON compliant"),
        (np.array([object()]), ValueError, "Object arrays cannot be saved"),
        (np.ma.masked_array([1], [True]), TypeError, "MaskedArray"),
        ({"a": np.zeros(2)}, TypeError, "ndarray"),
    ],
)
def test_what_would_not_come_back_is_refused(
    value: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        encode_value(value)


class Harmful:
    """Its pickle ends the process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


def test_a_pickle_in_a_file_is_not_run() -> None:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.array([Harmful()]), allow_pickle=True)
    for name, body in [("a.npy", content.getvalue()), ("a.npy", pickle.dumps(Harmful()))]:
        with pytest.raises(ValueError, match=r"Object arrays cannot|magic string"):
            decode_value(name, body)
    assert decode_value("a.pkl", b"anything") == b"anything"


@given(st.binary(max_size=200), st.integers(0, 127), st.binary(min_size=1, max_size=3))
def test_damaged_files_are_value_errors(rest: bytes, at: int, change: bytes) -> None:
    suffix, whole = encode_value(np.arange(4))
    damaged = whole[:at] + change + whole[at + len(change) :]
    for name, content in [("a.npy", rest), ("a.json", rest), (f"a{suffix}", damaged)]:
        with contextlib.suppress(ValueError):
            decode_value(name, content)


def test_a_header_of_a_huge_array_takes_no_memory() -> None:
    _, whole = encode_value(np.arange(4, dtype="<i8"))
    with pytest.raises(ValueError, match="not an array"):
        decode_value("a.npy", whole.replace(b"(4,), }            ", b"(9999999999999,), }"))


def test_without_numpy_there_are_no_arrays() -> None:
    program = "import sys; from contract.values import *; "
    program += "print(encode_value([1]), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "('.json', b'[1]') False\n"
