"""Installs of leases, as a scheduler sends them to a host."""

from __future__ import annotations

from typing import Any

from corekit.ids import LeaseId
from gpu_scheduler.model import Door, LeaseLifetime, LeaseState, Share
from gpu_scheduler.protocol.host import Install


def install_of(number: int, *shares: Share, **fields: Any) -> Install:
    """The install of lease `l<number>` with these shares, unless the fields differ."""
    values: dict[str, Any] = {
        "lease": LeaseId(f"l{number}"),
        "fence": number,
        "secret": "ab" * 32,
        "state": LeaseState.RESERVED,
        "shares": shares,
        "tenant": "t",
        "hold": LeaseLifetime.SESSION,
        "door": Door.GATEWAY,
        "cap_s": None,
        "connect_by_s": None,
    } | fields
    return Install(**values)
