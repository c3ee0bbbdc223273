"""Reports of workers that a card has failed. Not trusted: a worker may run foreign code."""

from __future__ import annotations

from collections.abc import Iterable

from corekit.ids import DeviceId
from gpu_scheduler.model import Share
from remote_gpu.host.warm.table import is_card

_REASON_CHARS_MAX = 300


def read_fault(shares: Iterable[Share], report: object) -> tuple[DeviceId, str]:
    """The card and the reason of a report. Raises ValueError for a device not of these shares."""
    if not isinstance(report, list) or len(report) != 2 or not isinstance(report[1], str):
        raise ValueError("a fault is not a device and a reason")
    index, reason = report
    for share in shares:
        if type(index) is int and share.index == index and is_card(share):
            return share.device, reason[:_REASON_CHARS_MAX]
    raise ValueError("a fault is reported of a device that is not a card of the lease")
