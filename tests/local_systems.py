"""The record of a running local system, for tests of what reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchgpu.local.home import Home, SystemRecord


def system_record(**fields: Any) -> SystemRecord:
    given: dict[str, Any] = {
        "supervisor_pid": 1,
        "cloud": "embedded",
        "endpoint": "http://127.0.0.1:1",
        "scheduler": "127.0.0.1:4700",
        "scheduler_http": "127.0.0.1:4780",
        "processes": (),
    }
    return SystemRecord(**{**given, **fields})


def home_of(folder: Path, **fields: Any) -> Home:
    """A home with such a record; a system runs in it while its lock is held."""
    home = Home(folder)
    home.create()
    home.write_system(system_record(**fields))
    return home
