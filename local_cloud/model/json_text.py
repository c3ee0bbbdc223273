"""Reading untrusted JSON: any malformed text is a ValueError."""

from __future__ import annotations

import json
from typing import Any

from corekit.decode import is_deeper

#: Deeper values are refused: every later reader or writer of them recurses. AWS's models nest 5.
NESTED_MAX = 200


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for other text, and beyond NESTED_MAX levels."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nests too deeply") from None
    if _opened(text) > NESTED_MAX and is_deeper(value, NESTED_MAX):
        raise ValueError("nests too deeply")
    return value


def _opened(text: str | bytes) -> int:
    """A cheap upper bound of the depth."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{")
    return text.count("[") + text.count("{")
