"""What a newer version wrote and this one ignores is told once, not with every message."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

#: Names that are remembered as told; a newer version adds few, and a stranger may send many.
WARNED_MAX = 1000
#: Of one key's path in a log line.
_CHARS_MAX = 200

_told: set[str] = set()
_INDEX = re.compile(r"\[\d+\]")


def known(logger: logging.Logger, read: tuple[T, Iterable[str]]) -> T:
    """The value of what `decode_known` and its like read; what was passed over is told."""
    value, keys = read
    warn_ignored(logger, keys)
    return value


def warn_ignored(logger: logging.Logger, keys: Iterable[str]) -> None:
    """Warn of keys (by their paths) that were passed over, each once while the process runs."""
    for key in keys:
        name = ascii(_INDEX.sub("[]", key))[1:-1][:_CHARS_MAX]
        if name in _told or len(_told) >= WARNED_MAX:
            continue
        _told.add(name)
        text = "%s is of a newer version; it is ignored here"
        logger.warning(text, name, extra={"event": "newer_version"})
