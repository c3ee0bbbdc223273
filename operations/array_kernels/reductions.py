"""Reductions along one axis, or over all elements, as kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from operations.numpy_arrays import C_TYPES, Array, heading
from remote_gpu.api import Bound, Call, DeviceMemory, Scalar

_GROUP = 256
#: Elements that a group reduces; longer rows are reduced by several groups first.
_PART = 16 * _GROUP
#: From this many results on, a work-item per result fills a card.
_RESULTS_MANY = 1 << 14

_STEPS = {
    "sum": "a + b",
    "product": "a * b",
    # NaN wins; it never does among integers
    "minimum": "a != a ? a : b != b ? b : a < b ? a : b",
    "maximum": "a != a ? a : b != b ? b : a > b ? a : b",
}

_SOURCE = """
static inline {number} {name}_of({number} a, {number} b) {{ return {step}; }}

/* A work-item per result: neighbours read neighbouring elements. */
__kernel void {name}_serial(__global const {element} *elements, long length, long inner,
                            long count, __global {number} *results)
{{
    for (long at = get_global_id(0); at < count; at += get_global_size(0)) {{
        const long first = at / inner * length * inner + at % inner;
        {number} total = ({number})elements[first];
        for (long i = 1; i < length; i++)
            total = {name}_of(total, ({number})elements[first + i * inner]);
        results[at] = total;
    }}
}}

/* A group per result and part of a row. */
__kernel void {name}_tree(__global const {element} *elements, long length, long inner,
                          long parts, __global {number} *results)
{{
    __local {number} totals[{group}];
    const long result = get_group_id(0) / parts, from = get_group_id(0) % parts * {part};
    const long end = from + {part} < length ? from + {part} : length;
    const long first = result / inner * length * inner + result % inner;
    const int item = get_local_id(0);
    const int items = end - from < {group} ? (int)(end - from) : {group};
    if (item < items) {{
        {number} total = ({number})elements[first + (from + item) * inner];
        for (long i = from + item + {group}; i < end; i += {group})
            total = {name}_of(total, ({number})elements[first + i * inner]);
        totals[item] = total;
    }}
    for (int left = items; left > 1; left = (left + 1) / 2) {{
        const int middle = (left + 1) / 2;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item + middle < left) totals[item] = {name}_of(totals[item], totals[item + middle]);
    }}
    if (item == 0) results[get_group_id(0)] = totals[0];
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A reduction of elements of one type to totals of another."""

    function: str
    element: str
    number: str

    @property
    def name(self) -> str:
        """The beginning of its kernels' names, unique by function and types."""
        return f"{self.function}_{self.element}_{self.number}"

    @property
    def source(self) -> str:
        return heading(self.element, self.number) + _SOURCE.format(
            name=self.name,
            number=C_TYPES[self.number],
            element=C_TYPES[self.element],
            step=_STEPS[self.function],
            group=_GROUP,
            part=_PART,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """`count` rows of elements in memory; neighbours in a row are `inner` elements apart."""

    elements: DeviceMemory
    dtype: str
    count: int
    length: int
    inner: int


def reduced(
    call: Call, function: str, array: Array, axis: int | None, dtype: npt.DTypeLike
) -> Array:
    """The reduction of an array that is not empty, with numpy's result type `dtype`.

    Raises OpFailed: ENOMEM, EIO.
    """
    if function == "mean":
        totals = reduced(call, "sum", array, axis, dtype)
        length = array.size if axis is None else array.shape[axis]
        return np.asarray(totals / np.dtype(dtype).type(length))
    number = np.dtype(dtype)
    if axis is None:
        array, axis = array.reshape(-1), 0
    shape = array.shape[:axis] + array.shape[axis + 1 :]
    rows = _Rows(
        elements=call.stored(np.ascontiguousarray(array)),
        dtype=array.dtype.name,
        count=math.prod(shape),
        length=array.shape[axis],
        inner=math.prod(array.shape[axis + 1 :]),
    )
    totals_of = _serial if rows.count >= _RESULTS_MANY else _tree
    found = call.result(totals_of(call, function, rows, number))
    return np.frombuffer(found, number).reshape(shape)


def _serial(call: Call, function: str, rows: _Rows, number: np.dtype[np.generic]) -> DeviceMemory:
    results = call.memory(rows.count * number.itemsize)
    reduction = Reduction(function=function, element=rows.dtype, number=number.name)
    scalars = [Scalar("long", value) for value in (rows.length, rows.inner, rows.count)]
    arguments: list[Bound] = [rows.elements, *scalars, results]
    call.launch(reduction.source, f"{reduction.name}_serial", arguments, rows.count, _GROUP)
    return results


def _tree(call: Call, function: str, rows: _Rows, number: np.dtype[np.generic]) -> DeviceMemory:
    while True:
        parts = -(-rows.length // _PART)
        results = call.memory(rows.count * parts * number.itemsize)
        reduction = Reduction(function=function, element=rows.dtype, number=number.name)
        scalars = [Scalar("long", value) for value in (rows.length, rows.inner, parts)]
        items = rows.count * parts * _GROUP
        arguments: list[Bound] = [rows.elements, *scalars, results]
        call.launch(reduction.source, f"{reduction.name}_tree", arguments, items, _GROUP)
        if parts == 1:
            return results
        rows = _Rows(elements=results, dtype=number.name, count=rows.count, length=parts, inner=1)
