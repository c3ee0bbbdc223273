"""Warnings about keys that a newer version wrote and this one ignores: one per key and process."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

#: The most names to warn about; a newer version adds few, and a hostile peer may send many.
WARNED_MAX = 1000
#: Characters of one key's path in a log line.
_CHARS_MAX = 200

_warned: set[str] = set()
_INDEX = re.compile(r"\[\d+\]")


def known(logger: logging.Logger, read: tuple[T, Iterable[str]]) -> T:
    """The value from `decode_known` or a similar function; warns about the ignored keys."""
    value, keys = read
    warn_ignored(logger, keys)
    return value


def warn_ignored(logger: logging.Logger, keys: Iterable[str]) -> None:
    """Warn about ignored keys (by path), once per key and process."""
    for key in keys:
        name = ascii(_INDEX.sub("[]", key))[1:-1][:_CHARS_MAX]
        if name in _warned or len(_warned) >= WARNED_MAX:
            continue
        _warned.add(name)
        text = "%s is of a newer version; it is ignored here"
        logger.warning(text, name, extra={"event": "newer_version"})
