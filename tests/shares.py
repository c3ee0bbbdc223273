"""A share of a device, for tests in which most of its fields do not matter."""

from __future__ import annotations

from typing import Any

from corekit.ids import DeviceId, HostId
from gpu_scheduler.model import DeviceKind, Share


def share_of(device: str = "h/0", host: str = "h", **fields: Any) -> Share:
    """A share of a CUDA device, with these fields other than usual."""
    usual: dict[str, Any] = {
        "index": 0,
        "kind": DeviceKind.CUDA,
        "model": "M",
        "memory_mib": 1,
        "compute_guarantee_pct": 0,
        "compute_limit_pct": 100,
        "exclusive": False,
    }
    return Share(host=HostId(host), device=DeviceId(device), **{**usual, **fields})
