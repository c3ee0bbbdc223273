"""The memory of a worker's process that no other process shares."""

from __future__ import annotations

import re
from pathlib import Path


def private_bytes(pid: int) -> int:
    """The process's own resident memory, without the spawner's; 0 once the process is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except PermissionError:  # undumpable, and gpud is not root
        return _anonymous_beyond_parent(pid)
    except OSError:
        return 0
    kib = [line.split()[1] for line in text.splitlines() if line.startswith("Private_")]
    return sum(map(int, kib)) << 10


def _anonymous_beyond_parent(pid: int) -> int:
    """An estimate: resident anonymous memory beyond that of its parent process."""
    try:
        own = _status(pid)
        of_parent = _status(own["PPid"])
    except (OSError, KeyError):  # gone
        return 0
    return max(0, own.get("RssAnon", 0) - of_parent.get("RssAnon", 0)) << 10


def _status(pid: int) -> dict[str, int]:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return {name: int(value) for name, value in re.findall(r"(?m)^(\w+):\s+(\d+)\b", text)}
