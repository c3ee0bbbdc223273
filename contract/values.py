"""Values as files: the input of a function with `values=True`, and its answer. Pure.

The suffix names the form: `.json`; `.npy`, an array of NumPy; any other, bytes. Nothing is pickled
or unpickled: a file of either side could run code in the other one, which may be another tenant's.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
from typing import Any

JSON, ARRAY, BYTES = ".json", ".npy", ".bin"


def encode_value(value: object) -> tuple[str, bytes]:
    """The suffix and the content of the value's file.

    Raises TypeError for what has no form that comes back the same (a tuple comes back as a list),
    ValueError for NaN and infinity outside arrays, and for arrays of objects.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return BYTES, bytes(value)
    numpy = sys.modules.get("numpy")  # without it there is no array
    if numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        content = io.BytesIO()
        numpy.save(content, value, allow_pickle=False)
        return ARRAY, content.getvalue()
    try:
        _check_keys(value)
        return JSON, json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, RecursionError) as error:
        name = type(value).__name__
        raise TypeError(f"{name}: {error}; a value is JSON, bytes or a NumPy array") from None


def decode_value(name: str, content: bytes) -> Any:
    """The value of a file of this name. Raises ValueError, and ImportError without NumPy."""
    if name.endswith(ARRAY):
        form: Any = importlib.import_module("numpy.lib.format")  # the function's, or the caller's
        try:
            return form.read_array(io.BytesIO(content), allow_pickle=False)[()]  # 0-d: a scalar
        except Exception as error:  # a damaged header raises whatever its parts raise
            raise ValueError(f"not an array: {error}") from None
    if name.endswith(JSON):
        try:
            return json.loads(content)
        except RecursionError:
            raise ValueError("JSON with too many levels") from None
    return content


def _check_keys(value: object) -> None:
    """Raise TypeError for keys that JSON would turn into strings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a string")
            _check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_keys(inner)
