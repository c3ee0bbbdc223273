"""`Weather`: the rates and delays of a cloud, with the named ones `none` and `aws`.

Written as `aws`, or with changes as `aws:scale=0.02,seed=7,slow_down_rate=0.1,role_s=5-20`.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec

from corekit.errors import invalid
from corekit.values import Value, replace

#: The least and the greatest of a delay in seconds; each one is drawn between them.
Span: TypeAlias = tuple[float, float]

NEVER: Span = (0.0, 0.0)
_ON = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class Weather(Value):
    """Rates are shares of calls or messages; times are seconds at scale 1."""

    name: str = "none"
    seed: str = ""
    #: Every time below, and Lambda's own (event age, back-off), is multiplied by it.
    scale: float = 1.0
    # --- IAM
    role_s: Span = NEVER  #: a new role is unknown to another service
    role_policy_s: Span = NEVER  #: a role's new policy is
    # --- Lambda
    pending_s: Span = NEVER  #: a new function is Pending
    vpc_pending_s: Span = NEVER  #: and in a VPC
    update_s: Span = NEVER  #: an update is InProgress
    inactive_after_s: float = 0.0  #: a function in a VPC that is idle this long becomes Inactive
    permission_s: Span = NEVER  #: a statement of a function's policy is unknown to S3
    throttle_pause_s: Span = NEVER  #: between two times without concurrency in the account
    throttle_s: Span = NEVER  #: the length of such a time
    throttle_back_off: bool = False  #: a throttled event waits for its pause though slots are free
    control_throttle_rate: float = 0.0  #: changes of functions refused by Lambda's API limit
    network_throttle_rate: float = 0.0  #: functions in a VPC refused by EC2's API limit
    # --- SQS
    queue_deleted_s: float = 0.0  #: a deleted queue's name stays in use
    queue_attributes_s: Span = NEVER  #: an attribute is not in force
    message_repeat_rate: float = 0.0  #: received messages received again, deleted ones too
    message_repeat_s: Span = NEVER  #: the time until then
    unordered: bool = False  #: receives take messages in any order
    # --- S3
    notification_s: Span = NEVER  #: the old notification rules stay in force
    event_s: Span = NEVER  #: from a change of an object to its event
    event_late_rate: float = 0.0  #: events that take longer
    event_late_s: Span = NEVER
    event_repeat_rate: float = 0.0  #: events delivered twice
    versioning_s: float = 0.0  #: a new object's reads may fail after versioning was enabled
    versioning_rate: float = 0.0  #: and so many of them do
    slow_down_rate: float = 0.0  #: object calls refused with 503
    lost_answer_rate: float = 0.0  #: writes that are made and answered with 500
    write_conflict_rate: float = 0.0  #: conditional writes refused with 409
    bucket_busy_s: Span = NEVER  #: a bucket's settings are being changed
    bucket_busy_rate: float = 0.0  #: changes in that time that are refused
    bucket_gone_s: Span = NEVER  #: a deleted bucket's name stays in use
    regions: bool = False  #: a bucket is served in its own region only

    def __post_init__(self) -> None:
        """Raises INVALID for a value that no cloud can have."""
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            if field.name.endswith("_rate") and not 0 <= value <= 1:
                raise invalid(f"weather: {field.name} is a share between 0 and 1, not {value:g}")
            if isinstance(value, tuple) and not 0 <= value[0] <= value[1] < math.inf:
                raise invalid(f"weather: {field.name} is LEAST-MOST, not {value[0]:g}-{value[1]:g}")
            if isinstance(value, float) and not 0 <= value < math.inf:
                raise invalid(f"weather: {field.name} cannot be {value:g}")
        if self.scale == 0:
            raise invalid("weather: scale is greater than 0; 0.02 makes five minutes six seconds")

    @property
    def empty(self) -> bool:
        """True when everything takes effect at once and nothing is refused."""
        return self == replace(NO_WEATHER, name=self.name, seed=self.seed, scale=self.scale)

    def __str__(self) -> str:
        return f"{self.name}, scale {self.scale:g}, seed {self.seed or '-'}"


NO_WEATHER = Weather()
#: Sources: docs/local-cloud.md, "Weather". A rate that AWS does not publish is a guess, on the high
#: side: a run of a minute shall meet each rule.
AWS = Weather(
    name="aws",
    role_s=(3.0, 20.0),
    role_policy_s=(3.0, 20.0),
    pending_s=(1.0, 10.0),
    vpc_pending_s=(30.0, 90.0),
    update_s=(1.0, 10.0),
    inactive_after_s=14 * 86400.0,
    permission_s=(0.0, 20.0),
    throttle_pause_s=(300.0, 1800.0),
    throttle_s=(30.0, 180.0),
    throttle_back_off=True,
    control_throttle_rate=0.01,
    network_throttle_rate=0.1,
    queue_deleted_s=60.0,
    queue_attributes_s=(1.0, 60.0),
    message_repeat_rate=0.02,
    message_repeat_s=(0.5, 60.0),
    unordered=True,
    notification_s=(60.0, 300.0),
    event_s=(0.2, 5.0),
    event_late_rate=0.02,
    event_late_s=(30.0, 90.0),
    event_repeat_rate=0.02,
    versioning_s=900.0,
    versioning_rate=0.2,
    slow_down_rate=0.01,
    lost_answer_rate=0.005,
    write_conflict_rate=0.02,
    bucket_busy_s=(0.5, 5.0),
    bucket_busy_rate=0.2,
    bucket_gone_s=(5.0, 60.0),
    regions=True,
)
PRESETS = {weather.name: weather for weather in (NO_WEATHER, AWS)}


def parse_weather(text: str) -> Weather:
    """The weather of `NAME` or `NAME:field=value,…`. Raises INVALID."""
    name, _, changes = text.partition(":")
    preset = PRESETS.get(name)
    if preset is None:
        raise invalid(f"weather {name!r} is unknown; there are {' and '.join(sorted(PRESETS))}")
    fields = {field.name: field for field in msgspec.structs.fields(Weather)}
    changed: dict[str, object] = {field: getattr(preset, field) for field in fields}
    for change in filter(None, changes.split(",")):
        key, equals, value = change.partition("=")
        if key not in fields or key == "name" or not equals:
            known = ", ".join(sorted(fields.keys() - {"name"}))
            raise invalid(f"weather: {change!r} is not FIELD=VALUE with a field of {known}")
        changed[key] = _value(key, getattr(preset, key), value)
    return msgspec.convert(changed, Weather)


def _value(key: str, before: object, text: str) -> object:
    """The value of a field in the type that it has."""
    try:
        if isinstance(before, bool):
            return _ON[text.lower()]
        if isinstance(before, tuple):
            least, _, most = text.partition("-")
            return float(least), float(most or least)
        return float(text) if isinstance(before, float) else text
    except (ValueError, KeyError):
        forms = {bool: "on or off", tuple: "LEAST-MOST in seconds", float: "a number"}
        raise invalid(f"weather: {key}={text} is not {forms[type(before)]}") from None
