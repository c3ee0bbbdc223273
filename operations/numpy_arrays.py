"""Arrays of numpy over the inputs of a call."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from remote_gpu.api import OpCode, OpFailed

#: Of any shape and type of element: both are known only when it is made.
Array: TypeAlias = "np.ndarray[Any, Any]"

_DIMENSIONS_MAX = 16
_SIDE_MAX = 2**40


def array_of(view: memoryview, dtype: str, shape: object, where: str = "") -> Array:
    """The bytes of an input as an array. `where` begins the message of OpFailed(EINVAL)."""
    if not isinstance(shape, list) or len(shape) > _DIMENSIONS_MAX:
        raise OpFailed(OpCode.EINVAL, f"{where}a shape lists at most {_DIMENSIONS_MAX} sizes")
    if not all(type(side) is int and 0 <= side < _SIDE_MAX for side in shape):
        raise OpFailed(OpCode.EINVAL, f"{where}a shape lists integers of 0…{_SIDE_MAX - 1}")
    wanted = math.prod(shape) * np.dtype(dtype).itemsize
    if view.nbytes != wanted:
        message = f"{dtype} of shape {shape} has {wanted} bytes, not {view.nbytes}"
        raise OpFailed(OpCode.EINVAL, where + message)
    try:
        return np.frombuffer(view, dtype).reshape(shape)
    except ValueError as error:  # sides with a zero among them whose product overflows
        raise OpFailed(OpCode.EINVAL, f"{where}{shape}: {error}") from None
