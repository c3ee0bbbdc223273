"""Reading an operation's arguments; every error names the argument and what it should be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from remote_gpu.wire.errors import OpCode, OpFailed


def whole(args: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A whole number in least…most. Raises OpFailed(EINVAL)."""
    value = args.get(name)
    if type(value) is not int or not least <= value <= most:
        raise OpFailed(OpCode.EINVAL, f"{name!r} must be a whole number of {least}…{most}")
    return value


def number(args: Mapping[str, Any], name: str, least: float, most: float) -> float:
    """A finite number in least…most. Raises OpFailed(EINVAL)."""
    value = args.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OpFailed(OpCode.EINVAL, f"{name!r} must be a number of {least}…{most}")
    if not math.isfinite(value) or not least <= value <= most:
        raise OpFailed(OpCode.EINVAL, f"{name!r} must be a number of {least}…{most}")
    return float(value)


def text(args: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A string of at most 1,000 characters. Raises OpFailed(EINVAL)."""
    value = args.get(name, default)
    if not isinstance(value, str) or len(value) > 1000:
        raise OpFailed(OpCode.EINVAL, f"{name!r} must be a string")
    return value


def only(args: Mapping[str, Any], *names: str) -> None:
    """Raises OpFailed(EINVAL) for an argument that is not one of `names`."""
    if unknown := sorted(set(args) - set(names)):
        known = ", ".join(names) or "no arguments"
        raise OpFailed(OpCode.EINVAL, f"unknown argument {unknown[0]!r}; it takes {known}")
