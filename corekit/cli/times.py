"""Times for people: local, with a date unless it is today's; `--utc` shows them in UTC.

JSON has seconds since the epoch, or ISO 8601 in UTC, whatever is chosen here.
"""

from __future__ import annotations

from datetime import UTC, datetime

import click

_UTC = "orchgpu.cli.utc"


def _noted(context: click.Context, _: click.Parameter, utc: bool) -> None:
    context.find_root().meta[_UTC] = utc


#: The option of every command that shows times of day.
utc_option = click.option(
    "--utc", is_flag=True, expose_value=False, callback=_noted, help="Show times in UTC."
)


def shown_time(wall_s: float, *, milliseconds: bool = False, now_s: float | None = None) -> str:
    """`14:03:59` if that is today, else `2026-11-21 14:03:59`; with --utc a `Z` follows.

    `now_s` decides what today is. [default: the clock]
    """
    context = click.get_current_context(silent=True)
    utc = context is not None and context.find_root().meta.get(_UTC, False)
    zone = UTC if utc else None
    at = datetime.fromtimestamp(wall_s, UTC).astimezone(zone)
    now = datetime.now(UTC) if now_s is None else datetime.fromtimestamp(now_s, UTC)
    date = "" if at.date() == now.astimezone(zone).date() else f"{at:%Y-%m-%d} "
    fraction = f".{at.microsecond // 1000:03d}" if milliseconds else ""
    return f"{date}{at:%H:%M:%S}{fraction}{'Z' if utc else ''}"
