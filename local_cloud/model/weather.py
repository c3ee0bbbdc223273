"""The weather of the cloud: AWS's documented delays, refusals and repetitions, drawn from a seed.

`Weather` has every rate and delay, with the named ones `none` and `aws`; written as `aws`, or with
changes as `aws:scale=0.02,seed=7,slow_down_rate=0.1,role_s=5-20`. `RULES` has what each rule draws
by and what the service answers; `Draws` alone draws. docs/reference/local-cloud.md names the
sources.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from corekit.errors import invalid
from corekit.ids import IdSource
from corekit.values import Value, replace
from local_cloud.model.errors import CloudError, refused

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
#: Sources: docs/reference/local-cloud.md, "Weather". A rate that AWS does not publish is a guess,
#: on the high side: a run of a minute shall meet each rule.
_AWS = (
    "role_s=3-20,role_policy_s=3-20,pending_s=1-10,vpc_pending_s=30-90,update_s=1-10,"
    "inactive_after_s=1209600,permission_s=0-20,throttle_pause_s=300-1800,throttle_s=30-180,"
    "throttle_back_off=on,control_throttle_rate=0.01,network_throttle_rate=0.1,"
    "queue_deleted_s=60,queue_attributes_s=1-60,message_repeat_rate=0.02,message_repeat_s=0.5-60,"
    "unordered=on,notification_s=60-300,event_s=0.2-5,event_late_rate=0.02,event_late_s=30-90,"
    "event_repeat_rate=0.02,versioning_s=900,versioning_rate=0.2,slow_down_rate=0.01,"
    "lost_answer_rate=0.005,write_conflict_rate=0.02,bucket_busy_s=0.5-5,bucket_busy_rate=0.2,"
    "bucket_gone_s=5-60,regions=on"
)


def parse_weather(text: str) -> Weather:
    """The weather of `NAME` or `NAME:field=value,…`. Raises INVALID."""
    name, _, changes = text.partition(":")
    preset = PRESETS.get(name)
    if preset is None:
        raise invalid(f"weather {name!r} is unknown; there are {' and '.join(sorted(PRESETS))}")
    return _changed(preset, changes)


def _changed(weather: Weather, changes: str) -> Weather:
    fields = set(Weather.__struct_fields__) - {"name"}
    values: dict[str, object] = {"name": weather.name}
    for change in filter(None, changes.split(",")):
        key, equals, value = change.partition("=")
        if key not in fields or not equals:
            names = ", ".join(sorted(fields))
            raise invalid(f"weather: {change!r} is not FIELD=VALUE with a field of {names}")
        values[key] = _value(key, getattr(weather, key), value)
    return msgspec.structs.replace(weather, **values)


def _value(key: str, before: object, text: str) -> object:
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


AWS = _changed(Weather(name="aws"), _AWS)
PRESETS = {weather.name: weather for weather in (NO_WEATHER, AWS)}


# ---------------------------------------------------------------------- the rules


class Rule(NamedTuple):
    """Fields of `Weather` by which a rule is drawn, and the refusal that it makes, if any."""

    rate: str = ""
    span: str = ""
    code: str = ""
    message: str = ""


# Each text is AWS's own: deployments decide by them whether to repeat a call.
_CANNOT = "The operation cannot be performed at this time. "
_PENDING = _CANNOT + "The function is currently in the following state: Pending"
_UPDATING = _CANNOT + "An update is in progress for resource: {}"
_INACTIVE = (
    "The function is inactive and its VPC connection is no longer available. Wait for the VPC"
    " connection to reestablish and try again."
)
_EC2 = (
    "Your request has been throttled by EC2, please make sure you have enough API rate limit. EC2"
    " Error Code: RequestLimitExceeded. EC2 Error Message: Request limit exceeded."
)
_DELETED = (
    "You must wait 60 seconds after deleting a queue before you can create another with the same"
    " name."
)
_LOST = "We encountered an internal error. Please try again."
_CONFLICT = "The conditional request cannot succeed due to a conflicting operation."
_BUSY = "A conflicting conditional operation is currently in progress. Please try again."
RULES = {
    # --- IAM: each service has its own words for a role that it does not know
    "role unknown": Rule(span="role_s"),
    "role's policy unknown": Rule(span="role_policy_s"),
    # --- Lambda
    "function pending": Rule("", "pending_s", "ResourceConflictException", _PENDING),
    "update in progress": Rule("", "update_s", "ResourceConflictException", _UPDATING),
    "function inactive": Rule("", "", "ResourceNotReadyException", _INACTIVE),
    "permission unknown": Rule(span="permission_s"),
    "throttled": Rule("", "throttle_s", "TooManyRequestsException", "Rate Exceeded."),
    "change throttled": Rule(
        "control_throttle_rate", "", "TooManyRequestsException", "Rate exceeded"
    ),
    "network throttled": Rule("network_throttle_rate", "", "InvalidParameterValueException", _EC2),
    # --- SQS
    "queue deleted recently": Rule("", "queue_deleted_s", "QueueDeletedRecently", _DELETED),
    "queue attributes late": Rule(span="queue_attributes_s"),
    "message": Rule(span="message_repeat_s"),
    "message repeated": Rule(rate="message_repeat_rate"),
    "message order": Rule(),
    # --- S3
    "notification rules late": Rule(span="notification_s"),
    "event": Rule(span="event_s"),
    "event late": Rule(rate="event_late_rate"),
    "event repeated": Rule(rate="event_repeat_rate"),
    "false 404": Rule(rate="versioning_rate"),
    "slow down": Rule("slow_down_rate", "", "SlowDown", "Please reduce your request rate."),
    "answer lost": Rule("lost_answer_rate", "", "InternalError", _LOST),
    "write conflict": Rule("write_conflict_rate", "", "ConditionalRequestConflict", _CONFLICT),
    "bucket busy": Rule("bucket_busy_rate", "bucket_busy_s", "OperationAborted", _BUSY),
    "bucket name in use": Rule("", "bucket_gone_s", "OperationAborted", _BUSY),
}


class LostAnswerError(CloudError):
    """A write that was made; its answer is an error."""


def refusal(rule: str, *arguments: str) -> CloudError:
    """The answer of the service by a rule."""
    error = refused(RULES[rule].code, RULES[rule].message.format(*arguments))
    if rule == "answer lost":
        return LostAnswerError(error.code, error.status, error.message)
    return error


# ---------------------------------------------------------------------- drawing


class Draws:
    """The draws of one weather from its seed, counted by rule: one stream for each rule, so that
    the draws of one never change those of another."""

    def __init__(self, weather: Weather = NO_WEATHER) -> None:
        self.weather = weather
        self.counts: dict[str, int] = {}  #: how often each rule took effect
        self._ids = IdSource(f"weather/{weather.seed}")

    def happens(self, rule: str) -> bool:
        """Whether the rule takes effect this time."""
        rate = getattr(self.weather, RULES[rule].rate)
        if rate <= 0 or self._ids.stream(rule).random() >= rate:
            return False
        self.count(rule)
        return True

    def check(self, rule: str) -> None:
        """Raises the refusal of a rule that takes effect this time."""
        if self.happens(rule):
            raise refusal(rule)

    def delay_s(self, rule: str, span: str = "") -> float:
        """A delay by the rule's span, or another field's, at this weather's scale."""
        value = getattr(self.weather, span or RULES[rule].span)
        least, most = value if isinstance(value, tuple) else (value, value)
        return self._ids.stream(rule).uniform(least, most) * self.weather.scale if most > 0 else 0.0

    def below(self, rule: str, count: int) -> int:
        """A number from 0 up to `count` - 1."""
        return self._ids.stream(rule).randrange(count)

    def count(self, rule: str) -> None:
        """The rule took effect."""
        self.counts[rule] = self.counts.get(rule, 0) + 1


T = TypeVar("T")


class Propagation(Generic[T]):
    """Changes by key that are in force, or known elsewhere, late: until then what was before is."""

    def __init__(self, draws: Draws, rule: str) -> None:
        self._draws = draws
        self._rule = rule
        self._changes: dict[str, tuple[float, T]] = {}  #: in force from then on; what was before

    def changed(self, now_s: float, key: str, before: T, span: str = "") -> None:
        """A change is made now: draw the time from which it is in force."""
        # of two changes within one delay neither is in force yet: what was before both still is
        before, delay_s = self.in_force(now_s, key, before), self._draws.delay_s(self._rule, span)
        self._changes.pop(key, None)
        if delay_s > 0:
            self._changes[key] = now_s + delay_s, before

    def in_force(self, now_s: float, key: str, newest: T) -> T:
        """The value that counts now."""
        return newest if self.settled(now_s, key) else self._changes[key][1]

    def settled(self, now_s: float, key: str) -> bool:
        return key not in self._changes or now_s >= self._changes[key][0]

    def known(self, now_s: float, key: str) -> bool:
        """`settled`; counts the rule when it is not."""
        if not self.settled(now_s, key):
            self._draws.count(self._rule)
            return False
        return True

    def check(self, now_s: float, key: str) -> None:
        """Raises the refusal of the rule while the change is not known."""
        if not self.known(now_s, key):
            raise refusal(self._rule)

    def pending(self, now_s: float) -> list[str]:
        """The keys whose change is not in force yet, sorted."""
        return sorted(key for key in self._changes if not self.settled(now_s, key))

    def forget(self, key: str) -> None:
        """The thing was deleted, or its state restored."""
        self._changes.pop(key, None)


# ---------------------------------------------------------------------- what services share


class StorageWeather:
    """The refusals of calls for objects and for buckets."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._versioned_at_s: dict[str, float] = {}
        self._busy = Propagation[None](draws, "bucket busy")
        self._names = Propagation[None](draws, "bucket name in use")

    def check_load(self) -> None:
        """Raises SlowDown."""
        self._draws.check("slow down")

    def versioning_enabled(self, now_s: float, bucket: str) -> None:
        """Versioning was enabled for the first time."""
        self._versioned_at_s.setdefault(bucket, now_s)

    def hides(self, now_s: float, bucket: str, written_at_s: float) -> bool:
        """Whether a read of an object of that date is a false 404."""
        since_s, weather = self._versioned_at_s.get(bucket, math.inf), self._draws.weather
        fresh = written_at_s >= since_s and now_s - since_s < weather.versioning_s * weather.scale
        return fresh and self._draws.happens("false 404")

    def check_settings(self, now_s: float, bucket: str) -> None:
        """Raises OperationAborted, before a change of a bucket's settings."""
        if not self._busy.settled(now_s, bucket):
            self._draws.check("bucket busy")
        self._busy.changed(now_s, bucket, None)

    def check_name(self, now_s: float, bucket: str) -> None:
        """Raises OperationAborted for the name of a bucket that was deleted a moment ago."""
        self._names.check(now_s, bucket)

    def deleted(self, now_s: float, bucket: str) -> None:
        """A bucket was deleted."""
        self._versioned_at_s.pop(bucket, None)
        self._names.changed(now_s, bucket, None)


class AccountConcurrency:
    """The other functions of the account: busy for a while, then idle for a while."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._busy_from_s, self._busy_to_s = 0.0, -1.0

    def busy(self, now_s: float) -> bool:
        """True while no concurrency is left."""
        if self._draws.weather.throttle_s[1] <= 0:
            return False
        if self._busy_to_s < 0:
            self._busy_to_s = now_s
        while now_s >= self._busy_to_s:
            pause_s = self._draws.delay_s("throttled", "throttle_pause_s")
            self._busy_from_s = self._busy_to_s + pause_s
            self._busy_to_s = self._busy_from_s + self._draws.delay_s("throttled")
        return now_s >= self._busy_from_s
