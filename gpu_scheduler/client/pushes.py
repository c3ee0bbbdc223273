"""What `SchedulerClient` delivers to `on_push`: the wire's pushes, and the connection's news."""

from __future__ import annotations

from collections.abc import Callable

from corekit.values import dataclass
from gpu_scheduler.protocol.answers import (
    BusyPush,
    DisownedPush,
    GrantedPush,
    HandlePush,
    ImpossiblePush,
    LeasePush,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The session is (again) known to the scheduler; pushes may have been lost meanwhile."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The connection broke; calls wait for the next one until their deadlines."""

    detail: str


PushWord = (
    GrantedPush
    | ImpossiblePush
    | BusyPush
    | LeasePush
    | HandlePush
    | DisownedPush
    | Connected
    | Disconnected
)

#: Called in the event loop, in the order of arrival; must return at once and not raise.
OnPush = Callable[[PushWord], None]
