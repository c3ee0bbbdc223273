"""Notices that this host leaves, and the one that decides. Pure.

Each source has one notice at a time: a signal, a spot interruption, an Auto Scaling group. The
strictest one decides: the earliest limit, and the program ends if any of them requires it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """The origin of a notice."""

    SIGNAL = "signal"
    SPOT = "spot"
    REBALANCE = "rebalance"
    AUTO_SCALING = "auto_scaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice that this host leaves."""

    reason: str
    until_s: float | None  #: monotonic: its leases end by then; None = no limit
    ends: bool  #: the program ends after the drain; else the host may take leases again


def strictest(notices: Mapping[Source, Notice]) -> Notice | None:
    """The notice that decides; None without a notice."""
    if not notices:
        return None
    limits_s = [one.until_s for one in notices.values() if one.until_s is not None]
    until_s = min(limits_s, default=None)
    first = next(one for one in notices.values() if one.until_s == until_s)
    ends = any(one.ends for one in notices.values())
    return Notice(reason=first.reason, until_s=until_s, ends=ends)
