"""Keys that name the runs of a workflow, the newest first: ids are in no order of time.

runs/newest/<workflow>/<n>-<run>    n falls with the time at which the input was stored
"""

from __future__ import annotations

import re

_KEY = re.compile(r"runs/newest/[^/]+/\d{15}-(?P<run>r[0-9a-f]{25})")
#: Above every time of a wall clock, in ms.
_LAST_MS = 10**15 - 1


def newest_prefix(workflow: str) -> str:
    """A LIST below it names the runs of a workflow, the newest first."""
    return f"runs/newest/{workflow}/"


def newest_key(workflow: str, run: str, stored_at_s: float) -> str:
    """Written once, before `run.json`, so that every run is named; `stored_at_s`: wall clock."""
    left_ms = _LAST_MS - min(_LAST_MS, max(0, round(1000 * stored_at_s)))
    return f"{newest_prefix(workflow)}{left_ms:015}-{run}"


def newest_run(key: str) -> str | None:
    """The run that a key of `newest_key` names; None for any other key."""
    match = _KEY.fullmatch(key)
    return match["run"] if match else None
