"""Schedules of EventBridge in the default group: calls of functions, and objects put into buckets,
at a rate or at the times of a cron expression."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice, takewhile
from typing import Any

from corekit.cron import aws_times
from corekit.decode import decode, encode
from corekit.errors import AppError
from corekit.values import Value, replace
from local_cloud.model.arns import Account, arn_service
from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.recorder import NullRecorder, Recorded, Recorder, part

#: The universal target that is here.
PUT_OBJECT = "arn:aws:scheduler:::aws-sdk:s3:putObject"
#: A run that begins later is one that was missed.
LATE_S_MAX = 60.0
#: Missed runs that are counted: each takes a step of the expression, while nothing else is served.
MISSED_MAX = 1000
_RATE = re.compile(r"rate\((\d+) (minute|hour|day)s?\)")
_UNIT_S = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
#: Parameters of PutObject that are here.
_REQUIRED = {"Bucket", "Key"}
_PARAMETERS = _REQUIRED | {"Body", "ExpectedBucketOwner", "IfNoneMatch"}


class Schedule(Value):
    """One schedule."""

    name: str
    given: Mapping[str, Any]  #: by AWS's names
    made_at_s: float
    modified_at_s: float
    seen_at_s: float = 0.0  #: runs up to this time have begun, or were missed; 0 = since the change

    @property
    def enabled(self) -> bool:
        return bool(self.given.get("State", "ENABLED") == "ENABLED")

    @property
    def target(self) -> str:
        return str(self.given["Target"]["Arn"])

    @property
    def payload(self) -> str:
        return str(self.given["Target"].get("Input", "{}"))

    @property
    def seen_s(self) -> float:
        return self.seen_at_s or self.modified_at_s

    def times(self) -> Iterator[float]:
        """The times of its runs that have not begun, as a wall clock has them.

        Raises INVALID for an expression that is not here.
        """
        expression = str(self.given["ScheduleExpression"])
        if match := _RATE.fullmatch(expression):
            every_s = int(match[1]) * _UNIT_S[match[2]]
            return (self.seen_s + every_s * number for number in count(1))
        zone = str(self.given.get("ScheduleExpressionTimezone", "UTC"))
        return aws_times(expression, zone, self.seen_s)

    def missed(self, now_s: float) -> int:
        """The number of runs that are too late to begin, up to `MISSED_MAX`."""
        late = takewhile(lambda at_s: at_s < now_s - LATE_S_MAX, self.times())
        return sum(1 for _ in islice(late, MISSED_MAX))

    def parameters(self, at_s: float) -> Mapping[str, Any]:
        """Those of the call of a run, with the schedule's attributes filled in."""
        at = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        filled: Mapping[str, Any] = json.loads(
            self.payload.replace("<aws.scheduler.scheduled-time>", at)
        )
        return filled


@dataclass(slots=True)
class Schedules:
    """Schedules by name. `on_change` is called after each change of one."""

    account: Account = field(default_factory=Account)
    recorder: Recorder = field(default_factory=NullRecorder)
    on_change: Callable[[str], None] = lambda _name: None
    _schedules: dict[str, Schedule] = field(default_factory=dict)

    def create(self, now_s: float, name: str, given: Mapping[str, Any]) -> Schedule:
        """Raises ConflictException, ValidationException; NotImplemented for what is not here."""
        if name in self._schedules:
            raise CloudError("ConflictException", 409, f"Schedule {name} already exists.")
        return self._put(name, given, now_s, now_s)

    def update(self, now_s: float, name: str, given: Mapping[str, Any]) -> Schedule:
        """Replace a schedule as a whole. Raises ResourceNotFoundException, and as `create`."""
        return self._put(name, given, self.get(name).made_at_s, now_s)

    def _put(self, name: str, given: Mapping[str, Any], made_at_s: float, now_s: float) -> Schedule:
        schedule = Schedule(name=name, given=given, made_at_s=made_at_s, modified_at_s=now_s)
        _check(schedule)
        self._store(schedule)
        self.on_change(name)
        return schedule

    def seen(self, name: str, at_s: float) -> Schedule:
        """Remember that the runs up to `at_s` have begun, or were missed."""
        schedule = replace(self._schedules[name], seen_at_s=at_s)
        self._store(schedule)
        return schedule

    def _store(self, schedule: Schedule) -> None:
        self._schedules[schedule.name] = schedule
        self.recorder.put(f"schedule/{part(schedule.name)}", encode(schedule))

    def get(self, name: str) -> Schedule:
        """Raises ResourceNotFoundException."""
        if name not in self._schedules:
            raise CloudError("ResourceNotFoundException", 404, f"Schedule {name} does not exist.")
        return self._schedules[name]

    def delete(self, name: str) -> None:
        """Raises ResourceNotFoundException."""
        self.get(name)
        del self._schedules[name]
        self.recorder.drop(f"schedule/{part(name)}")
        self.on_change(name)

    def names(self) -> list[str]:
        return list(self._schedules)

    def restore(self, value: Recorded) -> None:
        """Take back a recorded schedule."""
        schedule = decode(Schedule, value, "schedule")
        self._schedules[schedule.name] = schedule

    def arn(self, name: str) -> str:
        return f"arn:aws:scheduler:{self.account.region}:{self.account.id}:schedule/default/{name}"


def _check(schedule: Schedule) -> None:
    given, arn = schedule.given, schedule.target
    if given.get("FlexibleTimeWindow", {}).get("Mode", "OFF") != "OFF":
        raise not_implemented("a schedule with a flexible time window")
    try:
        next(schedule.times(), None)
    except AppError:
        zone = given.get("ScheduleExpressionTimezone", "UTC")
        what = f"the schedule {given['ScheduleExpression']!r} in the time zone {zone!r}"
        raise not_implemented(what) from None
    if arn == PUT_OBJECT:
        try:
            named = set(schedule.parameters(0.0))
        except (ValueError, TypeError):
            named = set()
        unknown, absent = named - _PARAMETERS, _REQUIRED - named
        if absent:
            text = f"Target.Input is not a JSON object with {', '.join(sorted(absent))}"
            raise refused("ValidationException", text)
        if unknown:
            raise not_implemented(f"PutObject of a schedule with {', '.join(sorted(unknown))}")
    elif arn_service(arn) != "lambda":
        raise not_implemented("a schedule of anything but a function and s3:putObject")
