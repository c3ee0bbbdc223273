"""Versions of drivers and runtimes, compared as numbers: 550.54.15 > 550.9, 12.0 = 12."""

from __future__ import annotations

import re
from functools import lru_cache

#: NVIDIA's versions have three numbers, OpenCL's two.
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,7}")

Version = tuple[int, ...]  #: () = unknown, less than every other


def is_version(text: str) -> bool:
    """True for numbers separated by dots, the form of a minimum version."""
    return _VERSION.fullmatch(text) is not None


@lru_cache(maxsize=1024)
def parse_version(text: str) -> Version:
    """The numbers at the beginning of `text` (`"3.0 PoCL 5.0"` is 3.0), without trailing zeros.

    A text that does not begin with a number is an unknown version, `()`.
    """
    match = _VERSION.match(text)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def dotted(version: Version) -> str:
    """The text of a version; "" = unknown."""
    return ".".join(map(str, version))
