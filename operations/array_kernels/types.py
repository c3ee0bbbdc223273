"""The types of arrays in kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
