"""`map` and `reduce` compared with numpy, and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operations.numpy_arrays import Array
from operations.plugins.arrays import BINARY, DTYPES, REDUCTIONS, UNARY
from remote_gpu.client import Local, OpFailed, OpResult
from remote_gpu.wire.frames import BufferLike


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    with Local() as device:
        yield device


def result_of(result: OpResult) -> Array:
    array = np.frombuffer(result.buffers[0], result.values["dtype"])
    return array.reshape(result.values["shape"])


def example(dtype: str, shape: tuple[int, ...]) -> Array:
    return np.arange(1, 1 + int(np.prod(shape))).astype(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(local: Local, name: str, dtype: str) -> None:
    given_array = example(dtype, (2, 3))
    got = result_of(local.op("map", given_array, function=name, dtype=dtype, shapes=[[2, 3]]))
    expected = UNARY[name](given_array)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arrays(local: Local, name: str) -> None:
    one, two = example("float32", (4, 3)), example("float32", (3,))
    result = local.op("map", one, two, function=name, dtype="float32", shapes=[[4, 3], [3]])
    np.testing.assert_array_equal(result_of(result), BINARY[name](one, two))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(local: Local, name: str, axis: int | None) -> None:
    array = example("float64", (4, 3))
    args: dict[str, Any] = {} if axis is None else {"axis": axis}
    result = local.op("reduce", array, function=name, dtype="float64", shapes=[[4, 3]], **args)
    np.testing.assert_array_equal(result_of(result), REDUCTIONS[name](array, axis=axis))


def test_division_by_zero_follows_ieee_754(local: Local) -> None:
    zero = np.zeros(1, np.float32)
    result = local.op("map", zero, zero, function="divide", shapes=[[1], [1]])
    assert np.isnan(result_of(result)).all()


@pytest.mark.parametrize(
    ("operation", "inputs", "args"),
    [
        ("map", 1, {"function": "add"}),
        ("map", 2, {"function": "sqrt"}),
        ("map", 1, {"function": "__import__"}),
        ("map", 1, {"dtype": "object"}),
        ("map", 1, {"shapes": [[3]]}),
        ("map", 1, {"shapes": [[-2]]}),
        ("map", 1, {"shapes": [[1] * 9]}),
        ("map", 1, {"shapes": []}),
        ("map", 1, {"shapes": "4"}),
        ("map", 1, {"other": 1}),
        ("map", 2, {"function": "add", "shapes": [[4], [2, 2]]}),
        ("reduce", 1, {"function": "median"}),
        ("reduce", 1, {"function": "sum", "axis": 1}),
        ("reduce", 1, {"function": "sum", "axis": "0"}),
    ],
)
def test_wrong_shapes_and_types_are_refused(
    local: Local, operation: str, inputs: int, args: dict[str, Any]
) -> None:
    data = [example("float32", (4,))] * inputs
    wanted: dict[str, Any] = {
        "function": "sqrt",
        "dtype": "float32",
        "shapes": [[4]] * inputs,
    } | args
    if args.get("shapes") == [[4], [2, 2]]:
        data = [example("float32", (4,)), example("float32", (2, 2))]
        wanted["shapes"] = [[4], [3, 1, 0]]
        data[1] = np.zeros((3, 1, 0), np.float32)
    with pytest.raises(OpFailed) as failed:
        local.op(operation, *data, **wanted)
    assert failed.value.code == "EINVAL"


@pytest.mark.parametrize(
    ("inputs", "args"),
    [
        ([2, -1], {"function": "power", "shapes": [[1], [1]]}),
        ([], {"function": "abs", "shapes": [[0, 2**31 - 1, 2**31 - 1, 2**31 - 1]]}),
        ([2], {"function": "abs", "shapes": [[2**62, 4, 0, 1]]}),
    ],
)
def test_errors_of_numpy_are_einval(local: Local, inputs: list[int], args: dict[str, Any]) -> None:
    data: list[BufferLike] = [np.array([number], np.int32) for number in inputs] or [b""]
    with pytest.raises(OpFailed, match="EINVAL"):
        local.op("map", *data, dtype="int32", **args)


@pytest.mark.parametrize(
    ("dtype", "root"), [("uint8", "float16"), ("int32", "float64"), ("int64", "float64")]
)
def test_roots_of_integers_are_fractions(local: Local, dtype: str, root: str) -> None:
    result = local.op("map", np.array([9], dtype), function="sqrt", dtype=dtype, shapes=[[1]])
    assert result.values["dtype"] == root
    assert np.frombuffer(result.buffers[0], root).tolist() == [3.0]


def test_an_empty_array_has_no_reduction(local: Local) -> None:
    with pytest.raises(OpFailed, match="empty"):
        local.op("reduce", b"", function="sum", shapes=[[0]])


@given(st.lists(st.integers(0, 5), max_size=4), st.binary(max_size=64))
@settings(max_examples=100)
def test_any_bytes_are_an_array_or_are_refused(local: Local, shape: list[int], data: bytes) -> None:
    fits = len(data) == 4 * int(np.prod(shape, dtype=int))
    if fits:
        result = local.op("map", data, function="abs", dtype="int32", shapes=[shape])
        assert result.values["shape"] == shape
    else:
        with pytest.raises(OpFailed, match="EINVAL"):
            local.op("map", data, function="abs", dtype="int32", shapes=[shape])
