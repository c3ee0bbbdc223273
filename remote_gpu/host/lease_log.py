"""What happened to every lease on this host, as JSON lines: the host's own evidence.

    {"event": "placed", "at_s": 12.5, "lease": "…", "fence": 7, "shares": [{"device", "memory_mib",
     "compute_guarantee_pct", "exclusive"}], …}

`at_s` is this machine's monotonic clock. A lease occupies its shares from `placed` to `cut`; no two
leases may overlap on one share. `read_overlaps` checks that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from remote_gpu.host.leases import Step


class LeaseLog:
    """Appends one line per step; a line is whole or absent."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, step: Step, event: str, at_s: float) -> None:
        """Record one step."""
        line = {
            "event": event,
            "at_s": round(at_s, 6),
            "lease": step.lease,
            "fence": step.fence,
            "shares": [
                {
                    "device": share.device,
                    "memory_mib": share.memory_mib,
                    "compute_guarantee_pct": share.compute_guarantee_pct,
                    "exclusive": share.exclusive,
                }
                for share in step.shares
            ],
            "nonce": step.nonce,
            "reason": step.reason,
            "detail": step.detail,
        }
        os.write(self._descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


def read_overlaps(lines: Iterable[str], memory_mib: Mapping[str, int]) -> list[str]:
    """Every moment in a log at which a device was lent beyond what it has; empty = none."""
    found: list[str] = []
    held: dict[str, dict[str, dict[str, Any]]] = {}  # device → lease → share
    for line in lines:
        entry = json.loads(line)
        for share in entry["shares"]:
            on_device = held.setdefault(share["device"], {})
            if entry["event"] == "placed":
                on_device[entry["lease"]] = share
                found += _excess(entry, share["device"], on_device, memory_mib)
            elif entry["event"] == "cut":
                on_device.pop(entry["lease"], None)
    return found


def _excess(
    entry: Mapping[str, Any],
    device: str,
    held: Mapping[str, Mapping[str, Any]],
    memory_mib: Mapping[str, int],
) -> list[str]:
    where = f"{entry['at_s']}: {device} held by {', '.join(held)}"
    problems = []
    if len(held) > 1 and any(share["exclusive"] for share in held.values()):
        problems.append(f"{where}, one exclusively")
    if sum(share["memory_mib"] for share in held.values()) > memory_mib[device]:
        problems.append(f"{where}: more memory than it has")
    if sum(share["compute_guarantee_pct"] for share in held.values()) > 100:
        problems.append(f"{where}: more compute than it has")
    return problems
