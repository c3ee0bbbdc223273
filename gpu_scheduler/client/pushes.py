"""The pushes that `SchedulerClient` delivers: the protocol's, and those of its connection."""

from __future__ import annotations

from collections.abc import Callable

from corekit.values import Value
from gpu_scheduler.protocol.answers import (
    BusyPush,
    DisownedPush,
    GrantedPush,
    HandlePush,
    ImpossiblePush,
    LeasePush,
    RecordPush,
)


class Connected(Value):
    """The session is (again) known to the scheduler; pushes may have been lost meanwhile."""

    epoch: int


class Disconnected(Value):
    """The connection broke; calls wait for the next one until their deadlines."""

    detail: str


PushWord = (
    GrantedPush
    | ImpossiblePush
    | BusyPush
    | LeasePush
    | RecordPush
    | HandlePush
    | DisownedPush
    | Connected
    | Disconnected
)

#: Called in the event loop, in the order of arrival; must return at once and not raise.
OnPush = Callable[[PushWord], None]
