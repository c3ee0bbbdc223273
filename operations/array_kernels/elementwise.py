"""Elementwise functions of one or two arrays, with numpy's broadcasting, as kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from operations.numpy_arrays import C_TYPES, Array, computed_as, heading
from remote_gpu.api import Call, Scalar

_GROUP = 256
#: Work-items of a launch at most; each takes every n-th element.
_ITEMS_MAX = 1 << 22

#: In the type of the result, by function; those of floating-point types only have one form.
_FLOATS = {
    "abs": "fabs(x)",
    "floor": "floor(x)",
    "ceil": "ceil(x)",
    "sqrt": "sqrt(x)",
    "exp": "exp(x)",
    "log": "log(x)",
    "sin": "sin(x)",
    "cos": "cos(x)",
    "tanh": "tanh(x)",
    "power": "pow(x, y)",
    "sign": "x != x ? x : (number)((x > 0) - (x < 0))",
    # like numpy's, and unlike fmax, NaN wins
    "maximum": "x != x ? x : y != y ? y : x > y ? x : y",
    "minimum": "x != x ? x : y != y ? y : x < y ? x : y",
}
_INTEGERS = {
    "abs": "x < 0 ? -x : x",
    "floor": "x",
    "ceil": "x",
    "sign": "(x > 0) - (x < 0)",
    "power": "power_of_number(x, y)",
    "maximum": "x > y ? x : y",
    "minimum": "x < y ? x : y",
}
_BOTH = {
    "negative": "-x",
    "square": "x * x",
    "add": "x + y",
    "subtract": "x - y",
    "multiply": "x * y",
    "divide": "x / y",
}

_SOURCE = """
{functions}
__kernel void {name}(__global const {a} *as, __global const {b} *bs, __global const long *layout,
                     int dimensions, long count, __global {number} *results)
{{
    for (long at = get_global_id(0); at < count; at += get_global_size(0)) {{
        long rest = at, in_a = 0, in_b = 0;
        for (int d = 0; d < dimensions; d++) {{
            const long place = rest % layout[3 * d];
            rest = rest / layout[3 * d];
            in_a += place * layout[3 * d + 1];
            in_b += place * layout[3 * d + 2];
        }}
        const {number} x = ({number})as[in_a], y = ({number})bs[in_b];
        results[at] = ({number})({expression});
    }}
}}
"""
_POWER = """
static inline {number} power_of_{number}({number} x, {number} y)
{{
    {number} product = 1;
    for (; y > 0; y = y / 2) {{
        if (y % 2) product = product * x;
        x = x * x;
    }}
    return product;
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise:
    """A function for arrays of these types; one of one array has its type twice."""

    function: str
    inputs: tuple[str, str]
    result: str

    @classmethod
    def of(cls, function: str, arrays: Sequence[Array], result: npt.DTypeLike) -> Elementwise:
        names = (arrays[0].dtype.name, arrays[-1].dtype.name)
        return cls(function=function, inputs=names, result=computed_as(result).name)

    @property
    def kernel(self) -> str:
        """Its name, unique by function and types."""
        return f"map_{self.function}_{'_'.join(self.inputs)}"

    @property
    def source(self) -> str:
        number, is_whole = C_TYPES[self.result], np.dtype(self.result).kind != "f"
        forms = (_INTEGERS if is_whole else _FLOATS) | _BOTH
        is_power = is_whole and self.function == "power"
        return heading(self.result, *self.inputs) + _SOURCE.format(
            functions=_POWER.format(number=number) if is_power else "",
            name=self.kernel,
            number=number,
            a=C_TYPES[self.inputs[0]],
            b=C_TYPES[self.inputs[1]],
            expression=forms[self.function].replace("number", number),
        )


def mapped(
    call: Call, function: str, arrays: Sequence[Array], shape: Sequence[int], dtype: npt.DTypeLike
) -> Array:
    """The function of arrays that broadcast to `shape`, with numpy's result type `dtype`.

    Raises OpFailed: ENOMEM, EIO.
    """
    number, count = computed_as(dtype), math.prod(shape)
    if count == 0:
        return np.empty(shape, dtype)
    layout = _layout(arrays, shape)
    stored = [call.stored(np.ascontiguousarray(array)) for array in arrays]
    results = call.memory(count * number.itemsize)
    arguments = (
        stored[0],
        stored[-1],
        call.stored(np.array(layout, np.int64)),
        Scalar("int", len(layout)),
        Scalar("long", count),
        results,
    )
    elementwise = Elementwise.of(function, arrays, dtype)
    items = min(count, _ITEMS_MAX)
    call.launch(elementwise.source, elementwise.kernel, arguments, items, _GROUP)
    found = np.frombuffer(call.result(results), number)
    return found.reshape(shape).astype(dtype, copy=False)


def _layout(arrays: Sequence[Array], shape: Sequence[int]) -> list[tuple[int, int, int]]:
    """Size and steps in both arrays by dimension, innermost first; neighbours that are one run of
    memory in both are joined."""
    steps = [_steps(array, shape) for array in (arrays[0], arrays[-1])]
    joined: list[tuple[int, int, int]] = []
    for size, a, b in zip(reversed(shape), reversed(steps[0]), reversed(steps[1]), strict=True):
        if size == 1:
            continue
        if joined:
            inner, in_a, in_b = joined[-1]
            if (a, b) == (inner * in_a, inner * in_b):
                joined[-1] = (inner * size, in_a, in_b)
                continue
        joined.append((size, a, b))
    return joined or [(1, 0, 0)]


def _steps(array: Array, shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next, by dimension of `shape`; 0 where it is broadcast."""
    broadcast = np.broadcast_to(np.ascontiguousarray(array), tuple(shape))
    return [stride // array.itemsize for stride in broadcast.strides]
