"""`map` and `reduce`: elementwise functions and reductions of arrays, by numpy or by kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from operations.array_kernels import elementwise, reductions
from operations.numpy_arrays import Array, array_of
from remote_gpu import api
from remote_gpu.api import Arguments, Context, Outcome, invalid

DTYPES = ("float32", "float64", "int32", "int64", "uint8")

#: One of numpy: arrays to an array.
Function: TypeAlias = Callable[..., Any]

#: Functions of one array, then of two of the same or a broadcastable shape.
UNARY: Mapping[str, Function] = {
    "abs": np.abs,
    "negative": np.negative,
    "square": np.square,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "sign": np.sign,
}
BINARY: Mapping[str, Function] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
REDUCTIONS: Mapping[str, Function] = {
    "sum": np.sum,
    "product": np.prod,
    "minimum": np.min,
    "maximum": np.max,
    "mean": np.mean,
}


_DTYPE = api.Text(name="dtype", meaning="of every input", default="float32", choices=DTYPES)
_SHAPES_RULE = "a list of shapes, one per input"
_RESULT = api.Port(
    name="result", dtype="as in `dtype` of the values", shape="`shape` of the values"
)
_VALUES = "`dtype`, `shape` of the result"


class Map(api.CpuOperation):
    """A function of one array, or of two whose shapes broadcast.

    The result has numpy's type for the function: roots of int32 and int64 are float64, those of
    uint8 float16. Division by zero and roots of negative numbers follow IEEE 754.
    """

    name = "map"
    implementation = f"numpy {np.__version__}"
    libraries: tuple[str, ...] = ("numpy",)
    limits = api.Limits(inputs_min=1, inputs_max=2, input_bytes_max=1 << 33)
    signature = api.Signature(
        arguments=(
            api.Text(name="function", meaning=f"{', '.join(UNARY)}; of two: {', '.join(BINARY)}"),
            _DTYPE,
            api.Structure(name="shapes", meaning="of the inputs", rule=_SHAPES_RULE),
        ),
        inputs=(
            api.Port(name="a", dtype="`dtype`", shape="`shapes[0]`"),
            api.Port(name="b", dtype="`dtype`", shape="`shapes[1]`", meaning="functions of two"),
        ),
        outputs=(_RESULT,),
        values=_VALUES,
    )

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        args = self.signature.read(args)
        name = args["function"]
        known = (UNARY, BINARY)[len(inputs) - 1]
        if name not in known:
            names = ", ".join(known)
            raise invalid(f"no function {name!r} of {len(inputs)} arrays; there are {names}")
        arrays = _arrays(args, inputs)
        try:
            shape = np.broadcast_shapes(*(array.shape for array in arrays))
        except ValueError as error:
            raise invalid(f"the shapes cannot be broadcast together: {error}") from None
        if name == "power" and arrays[0].dtype.kind != "f" and (arrays[1] < 0).any():
            raise invalid("power: integers to negative powers are not integers")
        with context.quota.held(8 * math.prod(shape)), np.errstate(all="ignore"):
            return _described(self._mapped(context, name, arrays, shape))

    def _mapped(
        self, context: Context, name: str, arrays: Sequence[Array], shape: Sequence[int]
    ) -> Array:
        del context, shape
        return np.asarray((UNARY, BINARY)[len(arrays) - 1][name](*arrays))


class KernelMap(Map):
    """`map` by a kernel of the function and its types. Roots, powers, exponential, logarithmic and
    trigonometric functions differ from numpy's in the last places."""

    implementation = "kernel-map"
    kinds = ("opencl", "cuda")
    libraries = ()
    by_kernels = True

    def kernel_sources(self) -> Sequence[str]:
        return [
            elementwise.Elementwise.of(name, arrays, _result_type(function, arrays)).source
            for dtype in DTYPES
            for count, functions in enumerate((UNARY, BINARY), start=1)
            for name, function in functions.items()
            for arrays in [[np.ones(1, dtype)] * count]
        ]

    def _mapped(
        self, context: Context, name: str, arrays: Sequence[Array], shape: Sequence[int]
    ) -> Array:
        dtype = _result_type((UNARY, BINARY)[len(arrays) - 1][name], arrays)
        with api.calls_of(context).call(context.quota) as call:
            return elementwise.mapped(call, name, arrays, shape, dtype)


class Reduce(api.CpuOperation):
    """A reduction of one array, along one axis or over all elements.

    Sums and products of integers are int64 (uint64 of unsigned ones); the mean is a fraction.
    """

    name = "reduce"
    implementation = f"numpy {np.__version__}"
    libraries: tuple[str, ...] = ("numpy",)
    limits = api.Limits(inputs_min=1, inputs_max=1, input_bytes_max=1 << 33)
    signature = api.Signature(
        arguments=(
            api.Text(name="function", meaning="the reduction", choices=tuple(REDUCTIONS)),
            _DTYPE,
            api.Structure(name="shapes", meaning="of the input", rule=_SHAPES_RULE),
            api.Structure(
                name="axis",
                meaning="absent: over all elements",
                rule="an integer below the number of dimensions",
                default=None,
            ),
        ),
        inputs=(api.Port(name="a", dtype="`dtype`", shape="`shapes[0]`"),),
        outputs=(_RESULT,),
        values=_VALUES,
    )

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        args = self.signature.read(args)
        name, axis = args["function"], args["axis"]
        array = _arrays(args, inputs)[0]
        if axis is not None and (type(axis) is not int or not 0 <= axis < array.ndim):
            raise invalid(f"'axis' must be an integer below {array.ndim}")
        if array.size == 0:
            raise invalid("an empty array cannot be reduced")
        held = 8 if axis is None else 8 * array.size // array.shape[axis]
        with context.quota.held(held), np.errstate(all="ignore"):
            return _described(self._reduced(context, name, array, axis))

    def _reduced(self, context: Context, name: str, array: Array, axis: int | None) -> Array:
        del context
        return np.asarray(REDUCTIONS[name](array, axis=axis))


class KernelReduce(Reduce):
    """`reduce` by kernels: sums of fractions in another order than numpy's, all else equal."""

    implementation = "kernel-reduce"
    kinds = ("opencl", "cuda")
    libraries = ()
    by_kernels = True

    def kernel_sources(self) -> Sequence[str]:
        return [
            reductions.Reduction(function=name, element=dtype, number=str(number)).source
            for dtype in DTYPES
            for name, function in REDUCTIONS.items()
            for number in [_result_type(function, [np.ones(1, dtype)])]
            if name != "mean"
        ]

    def _reduced(self, context: Context, name: str, array: Array, axis: int | None) -> Array:
        dtype = _result_type(REDUCTIONS[name], [array])
        with api.calls_of(context).call(context.quota) as call:
            return reductions.reduced(call, name, array, axis, dtype)


def _arrays(args: Arguments, inputs: Sequence[memoryview]) -> list[Array]:
    dtype, shapes = args["dtype"], args["shapes"]
    if not isinstance(shapes, list) or len(shapes) != len(inputs):
        raise invalid(f"'shapes' must list {len(inputs)} shapes, one per input")
    return [array_of(view, dtype, shape) for view, shape in zip(inputs, shapes, strict=True)]


def _result_type(function: Function, arrays: Sequence[Array]) -> np.dtype[np.generic]:
    return np.asarray(function(*(np.ones(1, array.dtype) for array in arrays))).dtype


def _described(array: Array) -> Outcome:
    return {"dtype": str(array.dtype), "shape": list(array.shape)}, [np.ascontiguousarray(array)]


OPERATIONS = (Map(), KernelMap(), Reduce(), KernelReduce())
