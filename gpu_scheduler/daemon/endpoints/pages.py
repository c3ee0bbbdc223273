"""Pages: answers that are lists, cut so that they fit into one message. Pure.

A page has a limit on items, but records and hosts differ in size by a factor of 100. The caller
requests the rest with its next request.
"""

from __future__ import annotations

from typing import TypeVar

from corekit.decode import encode_json
from corekit.values import Value, replace
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol import host as host_ops

T = TypeVar("T")


def fitting(value: Value, bytes_max: int) -> bytes:
    """The JSON of an answer, or of the first half, quarter, … of its list, that fits.

    An answer that is not a list, or of which the first item alone is too long, stays as it is.
    """
    text = encode_json(value)
    while len(text) > bytes_max and (shorter := _half(value)) is not None:
        value = shorter
        text = encode_json(value)
    return text


def _half(value: Value) -> Value | None:
    match value:
        case answers.RecordsAnswer() if len(value.records) > 1:
            return replace(value, records=_first(value.records))  # ends when empty
        case answers.LeasesAnswer() if len(value.leases) > 1:
            leases = _first(value.leases)
            ends = {one.id: value.ends_in_s[one.id] for one in leases if one.id in value.ends_in_s}
            return replace(value, leases=leases, ends_in_s=ends, more=True)
        case answers.InventoryAnswer() if len(value.hosts) > 1:
            return replace(value, hosts=_first(value.hosts), more=True)
        case answers.QueueAnswer() if len(value.queue) > 1:
            queue = _first(value.queue)
            left_out = value.left_out + len(value.queue) - len(queue)
            return replace(value, queue=queue, left_out=left_out)
        case host_ops.HostWelcome() if len(value.installs) > 1:
            until = value.until or value.installs[-1].fence
            return replace(value, installs=_first(value.installs), more=True, until=until)
        case host_ops.InstallsPage() if len(value.installs) > 1:
            return replace(value, installs=_first(value.installs), more=True)
        case _:
            return None


def _first(items: tuple[T, ...]) -> tuple[T, ...]:
    return items[: len(items) // 2]
