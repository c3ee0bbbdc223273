"""Answers that are lists: cut so that they fit into one message; what is left is asked for next.

A page has a limit in pieces, but records and hosts differ in size a hundredfold. Pure.
"""

from __future__ import annotations

from typing import Any

from corekit.decode import encode_json
from corekit.values import replace
from gpu_scheduler.core import actions as do


def fitting(value: do.Answer, text: bytes, bytes_max: int) -> bytes:
    """The JSON of an answer (`text`), of the first half of its list, of a fourth, … that fits.

    An answer that is not a list, or whose first piece alone is too long, stays as it is.
    """
    while len(text) > bytes_max and (shorter := _half(value)) is not None:
        value = shorter
        text = encode_json(value)
    return text


def _half(value: Any) -> Any:
    """The same answer with the first half of its list, which says that it is cut; None: no less."""
    match value:
        case do.RecordsAnswer() if len(value.records) > 1:
            return replace(value, records=_first(value.records))  # ends when empty
        case do.LeasesAnswer() if len(value.leases) > 1:
            leases = _first(value.leases)
            ends = {one.id: value.ends_in_s[one.id] for one in leases if one.id in value.ends_in_s}
            return replace(value, leases=leases, ends_in_s=ends, more=True)
        case do.InventoryAnswer() if len(value.hosts) > 1:
            return replace(value, hosts=_first(value.hosts), more=True)
        case do.QueueAnswer() if len(value.queue) > 1:
            queue = _first(value.queue)
            left_out = value.left_out + len(value.queue) - len(queue)
            return replace(value, queue=queue, left_out=left_out)
        case _:
            return None


def _first(items: tuple[Any, ...]) -> tuple[Any, ...]:
    return items[: len(items) // 2]
