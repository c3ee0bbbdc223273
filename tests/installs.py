"""Shares and installs of leases, as a scheduler sends them to a host."""

from __future__ import annotations

from typing import Any

from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.model import DeviceKind, Door, LeaseLifetime, LeaseState, Share
from gpu_scheduler.protocol.host import Install


def share_of(device: str = "d0", **fields: Any) -> Share:
    """One MiB of a CPU that other leases may use too, unless the fields differ."""
    values: dict[str, Any] = {
        "host": HostId("h"),
        "device": DeviceId(device),
        "index": 0,
        "kind": DeviceKind.CPU,
        "model": "m",
        "memory_mib": 1,
        "exclusive": False,
        "compute_guarantee_pct": 0,
        "compute_limit_pct": 100,
    } | fields
    return Share(**values)


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
