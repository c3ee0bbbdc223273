"""`map` and `reduce`: elementwise functions and reductions of arrays, by numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.arguments import only, text
from remote_gpu.worker.operation import Context, Limits, Outcome

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPES = ("float32", "float64", "int32", "int64", "uint8")
_DIMENSIONS_MAX = 8
_SIDE_MAX = 1 << 31

#: Functions of one array, then of two of the same or a broadcastable shape.
UNARY: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs, "negative": np.negative, "square": np.square, "sqrt": np.sqrt, "exp": np.exp,
    "log": np.log, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "floor": np.floor,
    "ceil": np.ceil, "sign": np.sign,
}  # fmt: skip
BINARY: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "power": np.power, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip
REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": np.sum, "product": np.prod, "minimum": np.min, "maximum": np.max, "mean": np.mean,
}  # fmt: skip


class Map:
    """Arguments `function`, `dtype`, `shapes` (one per input) → one array.

    The result has numpy's type for the function: roots of integers are float64. Division by zero
    and roots of negative numbers give what IEEE 754 says.
    """

    name = "map"
    version = 1
    kinds = ("cpu",)
    implementation = f"numpy {np.__version__}"
    limits = Limits(inputs_min=1, inputs_max=2, input_bytes_max=1 << 33)

    def prepare(self, context: Context) -> None:
        """Needs nothing."""

    def run(
        self, context: Context, args: Mapping[str, Any], inputs: Sequence[memoryview]
    ) -> Outcome:
        only(args, "function", "dtype", "shapes")
        name = text(args, "function")
        known = (UNARY, BINARY)[len(inputs) - 1]
        if name not in known:
            names = ", ".join(known)
            message = f"no function {name!r} of {len(inputs)} arrays; there are {names}"
            raise OpFailed(OpCode.EINVAL, message)
        arrays = _arrays(args, inputs)
        try:
            shape = np.broadcast_shapes(*(array.shape for array in arrays))
        except ValueError as error:
            raise OpFailed(OpCode.EINVAL, f"the shapes do not go together: {error}") from None
        with context.quota.held(8 * math.prod(shape)), np.errstate(all="ignore"):
            return _described(np.asarray(known[name](*arrays)))


class Reduce:
    """Arguments `function`, `dtype`, `shapes` (of the one input), `axis` (absent: all) → one array.

    Sums and products of integers are int64 (uint64 of unsigned ones); the mean is a fraction.
    """

    name = "reduce"
    version = 1
    kinds = ("cpu",)
    implementation = f"numpy {np.__version__}"
    limits = Limits(inputs_min=1, inputs_max=1, input_bytes_max=1 << 33)

    def prepare(self, context: Context) -> None:
        """Needs nothing."""

    def run(
        self, context: Context, args: Mapping[str, Any], inputs: Sequence[memoryview]
    ) -> Outcome:
        only(args, "function", "dtype", "shapes", "axis")
        name, axis = text(args, "function"), args.get("axis")
        if name not in REDUCTIONS:
            message = f"no reduction {name!r}; there are {', '.join(REDUCTIONS)}"
            raise OpFailed(OpCode.EINVAL, message)
        array = _arrays(args, inputs)[0]
        if axis is not None and (type(axis) is not int or not 0 <= axis < array.ndim):
            raise OpFailed(OpCode.EINVAL, f"'axis' must be a whole number below {array.ndim}")
        if array.size == 0:
            raise OpFailed(OpCode.EINVAL, "an empty array has no reduction")
        held = 8 if axis is None else 8 * array.size // array.shape[axis]
        with context.quota.held(held), np.errstate(all="ignore"):
            return _described(np.asarray(REDUCTIONS[name](array, axis=axis)))


def _arrays(args: Mapping[str, Any], inputs: Sequence[memoryview]) -> list[Array]:
    dtype, shapes = text(args, "dtype", "float32"), args.get("shapes")
    if dtype not in DTYPES:
        raise OpFailed(OpCode.EINVAL, f"'dtype' must be one of {', '.join(DTYPES)}")
    if not isinstance(shapes, list) or len(shapes) != len(inputs):
        raise OpFailed(OpCode.EINVAL, f"'shapes' must list {len(inputs)} shapes")
    return [_array(view, dtype, shape) for view, shape in zip(inputs, shapes, strict=True)]


def _array(view: memoryview, dtype: str, shape: Any) -> Array:
    right = isinstance(shape, list) and len(shape) <= _DIMENSIONS_MAX
    if not right or not all(type(side) is int and 0 <= side < _SIDE_MAX for side in shape):
        raise OpFailed(OpCode.EINVAL, f"a shape has at most {_DIMENSIONS_MAX} whole numbers")
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    if view.nbytes != wanted:
        message = f"{dtype} of shape {shape} has {wanted} bytes, not {view.nbytes}"
        raise OpFailed(OpCode.EINVAL, message)
    return np.frombuffer(view, dtype).reshape(shape)


def _described(array: Array) -> Outcome:
    return {"dtype": str(array.dtype), "shape": list(array.shape)}, [np.ascontiguousarray(array)]


OPERATIONS = (Map(), Reduce())
