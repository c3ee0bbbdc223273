"""The check of a host's log of leases: no share of a device is held twice at any moment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NotRequired, TypedDict

from corekit.units import WHOLE_PERMILLE, permille_of


class _Share(TypedDict):
    device: str
    memory_mib: int
    compute_guarantee_pct: float
    exclusive: bool


class _Line(TypedDict):
    event: str
    at_s: float
    lease: str
    shares: list[_Share]
    warm: NotRequired[list[str]]
    memory_mib: NotRequired[dict[str, int]]


def read_overlaps(lines: Iterable[str], memory_mib: Mapping[str, int]) -> list[str]:
    """The moments in a log at which a device was double-booked; empty = none."""
    found: list[str] = []
    held: dict[str, dict[str, _Share]] = {}  # device → lease → share
    warm: dict[str, dict[str, int]] = {}  # warm worker → device → memory
    for line in lines:
        try:
            entry: _Line = json.loads(line)
        except ValueError:  # an incomplete line: gpud was stopped
            continue
        if entry["event"] == "started":
            held.clear()
            warm.clear()
        elif entry["event"] in ("warm_kept", "warm_loading"):
            warm.update(dict.fromkeys(entry.get("warm", ()), entry.get("memory_mib", {})))
            for device in entry.get("memory_mib", {}) if entry["event"] == "warm_loading" else ():
                on_device = held.get(device, {})
                warm_mib = sum(memory.get(device, 0) for memory in warm.values())
                found += _overlaps(entry, device, on_device, memory_mib, warm_mib)
        elif entry["event"] in ("placed", "warm_start", "warm_gone"):
            for name in entry.get("warm", ()):
                warm.pop(name, None)
        for share in entry.get("shares", ()):  # an event of a newer version may have none
            on_device = held.setdefault(share["device"], {})
            if entry["event"] == "placed":
                on_device[entry["lease"]] = share
                warm_mib = sum(memory.get(share["device"], 0) for memory in warm.values())
                found += _overlaps(entry, share["device"], on_device, memory_mib, warm_mib)
            elif entry["event"] in ("cut", "unplaced"):
                on_device.pop(entry["lease"], None)
    return found


def _overlaps(
    entry: _Line,
    device: str,
    held: Mapping[str, _Share],
    memory_mib: Mapping[str, int],
    warm_mib: int,
) -> list[str]:
    where = f"{entry['at_s']}: {device} held by {', '.join(held)}"
    problems = []
    if len(held) > 1 and any(share["exclusive"] for share in held.values()):
        problems.append(f"{where}, one exclusively")
    if sum(share["memory_mib"] for share in held.values()) + warm_mib > memory_mib[device]:
        problems.append(f"{where}: more memory than the device has")
    permille = sum(permille_of(share["compute_guarantee_pct"]) for share in held.values())
    if permille > WHOLE_PERMILLE:
        problems.append(f"{where}: more compute than the device has")
    return problems
