"""Cron expressions: the five fields that people write, and those of EventBridge Scheduler. Pure.

cronsim reads fields and finds matches. What AWS does otherwise is here: its numbers of weekdays,
the `?`, and the changes of clocks (EventBridge Scheduler user guide, "Schedule types in EventBridge
Scheduler"): a time that a change leaves out has no run, one that a change repeats has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from corekit.errors import invalid

#: EventBridge's limit of an expression.
EXPRESSION_CHARACTERS_MAX = 256
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_AWS = re.compile(r"cron\(([^()]*)\)")
#: A weekday's number in AWS's form: 1 is Sunday. Not the count of a step or of `#`.
_WEEKDAY = re.compile(r"(?<![/#\d])\d+")
_BEGIN = datetime(2000, 1, 1)


def aws_cron(expression: str) -> str:
    """EventBridge's form of five fields. Raises INVALID for what it cannot express."""
    if len(expression.split()) != 5:
        raise invalid(
            f"{expression!r} is not a cron expression of five fields: minute, hour, day of the"
            " month, month, day of the week"
        )
    fields = _read(expression)
    weekdays = {day % 7 if isinstance(day, int) else -1 for day in fields.weekdays}
    if min(*fields.days, *weekdays) < 0:
        raise invalid(f"{expression!r}: `L` and `#` are not of cron's five fields")
    day, weekday = _days(expression, fields, weekdays)
    minute, hour = _written(fields.minutes, range(60)), _written(fields.hours, range(24))
    found = f"cron({minute} {hour} {day} {_written(fields.months, range(1, 13))} {weekday} *)"
    if len(found) > EXPRESSION_CHARACTERS_MAX:
        raise invalid(f"{expression!r} is too long in EventBridge's form: write several schedules")
    return found


def _days(expression: str, fields: CronSim, weekdays: set[int]) -> tuple[str, str]:
    """The days of the month and of the week: EventBridge takes one of the two."""
    dates, names = range(1, 32), range(7)
    days, every_weekday = _written(fields.days, dates), len(weekdays) == len(names)
    if days == "*" or every_weekday:
        if not fields.day_and or (days == "*" and every_weekday):  # cron runs on either
            return "*", "?"
        if every_weekday:
            return days, "?"
        return "?", _written(weekdays, names, _DAYS)
    raise invalid(
        f"{expression!r} names days of the month and of the week, and EventBridge takes one of the"
        " two: write `*` for the other, or two schedules"
    )


def _written(values: Iterable[int], whole: range, names: Sequence[str] = ()) -> str:
    """Values of a field as a word, a step from its first value, or ranges and single values."""
    ordered = sorted(values)
    if ordered == list(whole):
        return "*"
    step = ordered[1] - ordered[0] if len(ordered) > 2 else 0
    if step > 1 and not names and ordered == list(whole)[whole.index(ordered[0]) :: step]:
        return f"{ordered[0]}/{step}"
    return ",".join(
        name(first) if first == last else f"{name(first)}-{name(last)}"
        for name in [(lambda value: names[value]) if names else str]
        for first, last in _ranges(ordered)
    )


def _ranges(ordered: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = last = ordered[0]
    for value in ordered[1:]:
        if value != last + 1:
            yield first, last
            first = value
        last = value
    yield first, last


def zone_of(name: str) -> ZoneInfo:
    """The time zone of an IANA name. Raises INVALID."""
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise invalid(
            f"{name!r} is not a time zone that this machine knows, such as Europe/Madrid"
        ) from None


def aws_times(
    expression: str, timezone: str, after_s: float, *, back: bool = False
) -> Iterator[float]:
    """The times of `cron(…)` after `after_s`, or before it, nearest first; Unix time.

    Raises INVALID for an expression that EventBridge does not take, or with a year.
    """
    zone, fields = zone_of(timezone), _of_aws(expression)
    begin = datetime.fromtimestamp(after_s, zone).replace(tzinfo=None)
    for local in _read(fields, begin, back=back):
        at = local.replace(tzinfo=zone)
        at_s = at.timestamp()
        exists = at.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local
        if exists and (at_s < after_s if back else at_s > after_s):
            yield at_s


def _of_aws(expression: str) -> str:
    match = _AWS.fullmatch(expression)
    parts = match[1].split() if match else []
    if len(parts) != 6 or (parts[2] == "?") == (parts[4] == "?") or parts[5] != "*":
        raise invalid(
            f"{expression!r} is not cron(minute hour day month weekday *) with one `?` of the days"
        )
    parts[4] = _WEEKDAY.sub(lambda number: str(int(number[0]) - 1), parts[4])
    return " ".join(parts[:5]).replace("?", "*")


def _read(fields: str, begin: datetime = _BEGIN, *, back: bool = False) -> CronSim:
    try:
        return CronSim(fields, begin, reverse=back)
    except CronSimError as error:
        raise invalid(f"{fields!r} is not a cron expression: {error}") from None
