"""Notices that this host leaves, and the one that decides. Pure.

Each source has one notice at a time: a signal, a spot interruption, an Auto Scaling group. The
strictest one decides: the earliest limit, and the program ends if any of them requires it.

Those of EC2 and its Auto Scaling groups are items of the instance metadata.
Spot interruption: `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`, two minutes before; a
hibernation begins at once.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html

Rebalance recommendation: `{"noticeTime": "2020-10-27T08:22:00Z"}`, a higher risk of an interruption
without a time.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html

Target lifecycle state: the steady state to which the group moves the instance.
https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from corekit.errors import invalid


class NoticeSource(StrEnum):
    """The origin of a notice."""

    SIGNAL = "signal"
    SPOT = "spot"
    REBALANCE = "rebalance"
    AUTO_SCALING = "auto_scaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice that this host leaves."""

    reason: str
    until_s: float | None  #: monotonic: its leases end by then; None = no limit
    ends: bool  #: the program ends after the drain; else the host may take leases again


def strictest(notices: Mapping[NoticeSource, Notice]) -> Notice | None:
    """The notice that decides; None without a notice."""
    if not notices:
        return None
    limits_s = [one.until_s for one in notices.values() if one.until_s is not None]
    until_s = min(limits_s, default=None)
    first = next(one for one in notices.values() if one.until_s == until_s)
    ends = any(one.ends for one in notices.values())
    return Notice(reason=first.reason, until_s=until_s, ends=ends)


#: The time that a spot interruption leaves at most; a later one shows that this clock is wrong.
SPOT_S = 120.0
#: Lifecycle states after which the instance is gone.
_GONE = ("Terminated", "Warmed:Terminated")
#: Lifecycle states in which the instance serves nothing, but may return to service.
_ASIDE = ("Warmed:Stopped", "Warmed:Hibernated", "Warmed:Running", "Standby")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The clocks at the arrival of an item, and the limits of a drain."""

    at_s: float  #: monotonic
    wall_s: float
    drain_s: float  #: of a notice without a time
    reserve_s: float  #: before the machine is gone: for the ends of processes and their reports


def spot(text: str, now: Moment) -> Notice:
    """The notice of a spot interruption. Raises INVALID for an unreadable item."""
    fields = _fields("spot/instance-action", text)
    action, time = fields.get("action"), fields.get("time")
    if not isinstance(action, str) or not isinstance(time, str):
        raise invalid(f"spot/instance-action {text!r:.100} names no action and time")
    if action == "hibernate":
        return Notice(reason="spot interruption: hibernate", until_s=now.at_s, ends=False)
    left_s = min(_wall_s("spot/instance-action", time) - now.wall_s, SPOT_S) - now.reserve_s
    reason = f"spot interruption: {action} at {time}"
    return Notice(reason=reason, until_s=now.at_s + max(0.0, left_s), ends=True)


def rebalance(text: str, now: Moment) -> Notice:
    """The notice of a rebalance recommendation: without a limit, and nothing has to end."""
    del now
    noticed = _fields("events/recommendations/rebalance", text).get("noticeTime")
    return Notice(reason=f"rebalance recommendation of {noticed}", until_s=None, ends=False)


def lifecycle(text: str, now: Moment) -> Notice | None:
    """The notice of a target lifecycle state; None for a state in which the instance serves."""
    reason = f"Auto Scaling: {text}"
    if text in _GONE:
        return Notice(reason=reason, until_s=now.at_s + now.drain_s, ends=True)
    if text in _ASIDE:
        return Notice(reason=reason, until_s=now.at_s + now.drain_s, ends=False)
    return None


#: Path below `/latest/meta-data/` and reader, by the source of the notice.
ITEMS: Mapping[NoticeSource, tuple[str, Callable[[str, Moment], Notice | None]]] = {
    NoticeSource.SPOT: ("spot/instance-action", spot),
    NoticeSource.REBALANCE: ("events/recommendations/rebalance", rebalance),
    NoticeSource.AUTO_SCALING: ("autoscaling/target-lifecycle-state", lifecycle),
}


def _fields(name: str, text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid(f"{name} {text!r:.100} is not JSON") from None
    if not isinstance(value, dict):
        raise invalid(f"{name} {text!r:.100} is not a JSON object")
    return value


def _wall_s(name: str, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid(f"{name}: {text!r:.100} is not a time") from None
    if moment.tzinfo is None:
        raise invalid(f"{name}: {text!r:.100} has no time zone")
    return moment.timestamp()
