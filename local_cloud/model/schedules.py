"""Schedules of EventBridge: regular calls of functions, at a rate, in the default group."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corekit.decode import decode, encode
from corekit.values import Value
from local_cloud.model.arns import Account, arn_service
from local_cloud.model.errors import CloudError, not_implemented
from local_cloud.model.recorder import NullRecorder, Recorded, Recorder, part

_RATE = re.compile(r"rate\((\d+) (minute|hour|day)s?\)")
_UNIT_S = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}


class Schedule(Value):
    """One schedule."""

    name: str
    given: Mapping[str, Any]  #: by AWS's names
    made_at_s: float
    modified_at_s: float

    @property
    def every_s(self) -> float:
        match = _RATE.fullmatch(self.given["ScheduleExpression"])
        assert match is not None, "checked when it was made"
        return int(match[1]) * _UNIT_S[match[2]]

    @property
    def enabled(self) -> bool:
        return bool(self.given.get("State", "ENABLED") == "ENABLED")

    @property
    def target(self) -> str:
        return str(self.given["Target"]["Arn"])

    @property
    def payload(self) -> str:
        return str(self.given["Target"].get("Input", "{}"))


@dataclass(slots=True)
class Schedules:
    """Schedules by name. `on_change` is called after each change of one."""

    account: Account = field(default_factory=Account)
    recorder: Recorder = field(default_factory=NullRecorder)
    on_change: Callable[[str], None] = lambda _name: None
    _schedules: dict[str, Schedule] = field(default_factory=dict)

    def create(self, now_s: float, name: str, given: Mapping[str, Any]) -> Schedule:
        """Raises ConflictException, ValidationException; NotImplemented for cron and one time."""
        if name in self._schedules:
            raise CloudError("ConflictException", 409, f"Schedule {name} already exists.")
        return self._put(name, given, now_s, now_s)

    def update(self, now_s: float, name: str, given: Mapping[str, Any]) -> Schedule:
        """Replace a schedule as a whole. Raises ResourceNotFoundException, and as `create`."""
        return self._put(name, given, self.get(name).made_at_s, now_s)

    def _put(self, name: str, given: Mapping[str, Any], made_at_s: float, now_s: float) -> Schedule:
        if _RATE.fullmatch(given["ScheduleExpression"]) is None:
            raise not_implemented(
                f"the schedule {given['ScheduleExpression']!r}, other than a rate,"
            )
        if arn_service(given["Target"]["Arn"]) != "lambda":
            raise not_implemented("a schedule of anything but a function")
        schedule = Schedule(name=name, given=given, made_at_s=made_at_s, modified_at_s=now_s)
        self._schedules[name] = schedule
        self.recorder.put(f"schedule/{part(name)}", encode(schedule))
        self.on_change(name)
        return schedule

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
