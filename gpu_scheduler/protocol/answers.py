"""What a requester session is answered and told: the core's answers, with secrets filled in.

Where the core's value holds no lease, it is the wire's value too and only named here.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.ids import JobId
from corekit.values import Value
from gpu_scheduler.core.actions import (
    BusyPush,
    DeviceView,
    DisownedPush,
    Done,
    ExplainAnswer,
    HandlePush,
    HostView,
    ImpossiblePush,
    InventoryAnswer,
    LeaseAnswer,
    LeasePush,
    LeasesAnswer,
    Outcome,
    ParametersAnswer,
    QueueAnswer,
    QueuedView,
    RecordAnswer,
    RecordsAnswer,
    SessionWelcome,
)
from gpu_scheduler.model import Explanation, GrantedLease, Record


class AttemptOutcome(Value):
    """Answer of `attempt` and `reserve`: exactly one of `granted` and `explanation` is there."""

    outcome: Outcome
    granted: GrantedLease | None = None
    explanation: Explanation | None = None
    record: Record | None = None  #: None for `reserve`


class Adopted(Value):
    """Answer of `adopt`."""

    record: Record
    granted: GrantedLease | None  #: None: no live lease (record.reason says why it ended)


class GrantedPush(Value):
    """Push `granted`: a waiting request got its lease; `renew` it within `accept_s`."""

    holder: JobId | None
    attempt: str
    granted: GrantedLease


#: Pushes of the wire, by name; all but `granted` are the core's own values.
PUSHES: Mapping[
    str,
    type[GrantedPush | ImpossiblePush | BusyPush | LeasePush | HandlePush | DisownedPush],
] = {
    "granted": GrantedPush,
    "impossible": ImpossiblePush,
    "busy": BusyPush,
    "lease": LeasePush,
    "handle": HandlePush,
    "disowned": DisownedPush,
}

__all__ = [
    "PUSHES",
    "Adopted",
    "AttemptOutcome",
    "BusyPush",
    "DeviceView",
    "DisownedPush",
    "Done",
    "ExplainAnswer",
    "GrantedPush",
    "HandlePush",
    "HostView",
    "ImpossiblePush",
    "InventoryAnswer",
    "LeaseAnswer",
    "LeasePush",
    "LeasesAnswer",
    "Outcome",
    "ParametersAnswer",
    "QueueAnswer",
    "QueuedView",
    "RecordAnswer",
    "RecordsAnswer",
    "SessionWelcome",
]
