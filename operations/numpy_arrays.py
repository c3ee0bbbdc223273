"""Arrays of numpy over the inputs of a call, and their types in kernels."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from remote_gpu.api import invalid

#: Of any shape and type of element: both are known only when it is made.
Array: TypeAlias = "np.ndarray[Any, Any]"

_DIMENSIONS_MAX = 16
_SIDE_MAX = 2**40


def array_of(view: memoryview, dtype: str, shape: object, where: str = "") -> Array:
    """The bytes of an input as an array. `where` begins the message of OpFailed(EINVAL)."""
    if not isinstance(shape, list) or len(shape) > _DIMENSIONS_MAX:
        raise invalid(f"{where}a shape lists at most {_DIMENSIONS_MAX} sizes")
    if not all(type(side) is int and 0 <= side < _SIDE_MAX for side in shape):
        raise invalid(f"{where}a shape lists integers of 0…{_SIDE_MAX - 1}")
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    if view.nbytes != wanted:
        raise invalid(f"{where}{dtype} of shape {shape} has {wanted} bytes, not {view.nbytes}")
    try:
        return np.frombuffer(view, dtype).reshape(shape)
    except ValueError as error:  # sides with a zero among them whose product overflows
        raise invalid(f"{where}{shape}: {error}") from None


#: numpy's name of a type → the kernel language's.
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "long",
    "uint64": "ulong",
    "uint8": "uchar",
    "bool": "uchar",
}

#: Before a source with `double`; drivers of OpenCL 1 ask for it.
DOUBLES = """#ifndef __CUDACC__
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
"""


def computed_as(dtype: npt.DTypeLike) -> np.dtype[np.generic]:
    """The type to compute results of `dtype` in: kernels have no type of 16 bits.

    numpy's functions compute such results in 32 bits as well, and round them.
    """
    found = np.dtype(dtype)
    return np.dtype(np.float32) if found == np.float16 else found


def heading(*dtypes: npt.DTypeLike) -> str:
    """The beginning of a source that uses these types."""
    return DOUBLES if any(np.dtype(dtype) == np.float64 for dtype in dtypes) else ""
