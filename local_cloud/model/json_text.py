"""Reading untrusted JSON: any malformed text is a ValueError."""

from __future__ import annotations

import json
from typing import Any

#: Deeper values are refused: every later reader or writer of them recurses. AWS's models nest 5.
NESTED_MAX = 200


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for other text, and beyond NESTED_MAX levels."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nests too deeply") from None
    if _opened(text) > NESTED_MAX and _depth(value) > NESTED_MAX:
        raise ValueError("nests too deeply")
    return value


def _opened(text: str | bytes) -> int:
    """A cheap upper bound of the depth."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{")
    return text.count("[") + text.count("{")


def _depth(value: object) -> int:
    """Nested levels of lists and objects."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, (list, dict))]:
        depth += 1
        level = [v for one in level for v in (one.values() if isinstance(one, dict) else one)]
    return depth
