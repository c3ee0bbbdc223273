"""`map` and `reduce` by kernels: numpy's values, types and shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from operations.plugins.arrays import (
    BINARY,
    DTYPES,
    REDUCTIONS,
    UNARY,
    KernelMap,
    KernelReduce,
    Map,
    Reduce,
)
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from tests.unit.operations.conftest import Card

Array = npt.NDArray[Any]


def in_turn(functions: Iterable[str]) -> pytest.MarkDecorator:
    """Each function with every other dtype, so that each dtype has half of the functions: a kernel
    is compiled for each pair. `make soak` has all pairs."""
    pairs = [
        pytest.param(function, dtype, marks=[pytest.mark.soak] if (row + column) % 2 else [])
        for row, function in enumerate(functions)
        for column, dtype in enumerate(DTYPES)
    ]
    return pytest.mark.parametrize(("function", "dtype"), pairs)


#: numpy and a device round transcendental functions differently in the last places.
TOLERANCE = {"float16": 1e-3, "float32": 2e-6, "float64": 1e-14}
SHAPES = [
    ([7, 3], [7, 3]),
    ([7, 1, 5], [3, 1]),
    ([4], [2, 3, 4]),
    ([], [5]),
    ([0, 3], [3]),
    ([2, 3, 4], [2, 1, 1]),
]


def numbers(dtype: str, shape: list[int], seed: int) -> Array:
    """Values of both signs, and NaN, infinity and zero among fractions."""
    stream = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind != "f":
        least, most = (0, 200) if kind == "u" else (-9, 9)
        return stream.integers(least, most, shape).astype(dtype)
    values = stream.normal(scale=3, size=shape).astype(dtype)
    values.reshape(-1)[:4] = np.array([np.nan, np.inf, 0.0, -0.0])[: min(4, values.size)]
    return values


def compare(card: Card, by_numpy: Map | Reduce, args: dict[str, Any], arrays: list[Array]) -> None:
    """The kernel's answer is numpy's."""
    by_kernel = KernelMap() if isinstance(by_numpy, Map) else KernelReduce()
    inputs = [memoryview(array.tobytes()) for array in arrays]
    values, (wanted,) = by_numpy.run(Context(), args, inputs)
    context = card()
    described, (found,) = by_kernel.run(context, args, inputs)
    assert described == values
    assert context.quota.used_bytes == 0
    tolerance = TOLERANCE.get(values["dtype"], 0)
    scale = np.nanmax(np.abs(wanted), initial=0.0, where=np.isfinite(wanted))
    np.testing.assert_allclose(
        np.asarray(found), np.asarray(wanted), rtol=tolerance, atol=tolerance * float(scale)
    )


@in_turn(UNARY)
def test_functions_of_one_array(card: Card, function: str, dtype: str) -> None:
    args = {"function": function, "dtype": dtype, "shapes": [[7, 3]]}
    compare(card, Map(), args, [numbers(dtype, [7, 3], 1)])


@in_turn(BINARY)
def test_functions_of_two_arrays_broadcast(card: Card, function: str, dtype: str) -> None:
    for left, right in SHAPES:
        a, b = numbers(dtype, left, 2), numbers(dtype, right, 3)
        if function == "power" and a.dtype.kind != "f":
            b = (np.abs(b) % 5).astype(dtype)
        args = {"function": function, "dtype": dtype, "shapes": [left, right]}
        compare(card, Map(), args, [a, b])


@in_turn(REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ([7], None),
        ([1], 0),
        ([20, 57], 0),
        ([20, 57], 1),
        ([3, 20_000, 2], 1),  # rows in parts
        ([3, 20_000], 0),  # a result per work-item
        ([100_000], None),  # parts of parts
    ],
)
def test_reductions(
    card: Card, function: str, dtype: str, shape: list[int], axis: int | None
) -> None:
    array = numbers(dtype, shape, 4)
    if array.size > 7 and array.dtype.kind == "f":
        array = np.where(np.isfinite(array), array, 1).astype(dtype)
    if function == "product":
        array = np.sign(array).astype(dtype)
    args = {"function": function, "dtype": dtype, "shapes": [shape], "axis": axis}
    compare(card, Reduce(), args, [array])


def test_integers_to_negative_powers_are_refused_by_both(card: Card) -> None:
    ones = memoryview(np.array([-1], np.int32).tobytes())
    args = {"function": "power", "dtype": "int32", "shapes": [[1], [1]]}
    for operation, context in ((Map(), Context()), (KernelMap(), card())):
        with pytest.raises(OpFailed, match="negative powers") as failed:
            operation.run(context, args, [ones, ones])
        assert failed.value.code is OpCode.EINVAL


def test_memory_of_the_device_counts(card: Card) -> None:
    context = card(Quota(1 << 16))
    args = {"function": "abs", "dtype": "float32", "shapes": [[1 << 13]]}
    with pytest.raises(OpFailed) as failed:
        KernelMap().run(context, args, [memoryview(bytes(4 << 13))])
    assert failed.value.code is OpCode.ENOMEM
    assert context.quota.used_bytes == 0
