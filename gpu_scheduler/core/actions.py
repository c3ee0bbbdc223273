"""Actions that the scheduler requests of the daemon. Those of one decision are performed in order.

Answers and pushes are the values of the protocol, except for secrets: the daemon adds those to a
`GrantedLease` and to an `Install`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corekit.errors import ErrorCode
from corekit.ids import HostId, JobId, SessionId
from corekit.values import Value, field
from gpu_scheduler.protocol.answers import Push
from gpu_scheduler.protocol.host import HostPush


class Reply(Value):
    """The successful answer to one request."""

    reply_to: str
    answer: Value


class ReplyError(Value):
    """An error answer; its details hold plain values or a `Record` (the daemon encodes them)."""

    reply_to: str
    code: ErrorCode
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


class PushToSession(Value):
    """Dropped when the session is not connected: the session asks again when it reconnects."""

    session: SessionId
    push: Push


class PushToHost(Value):
    """Dropped when the host is disconnected: its next hello is answered with the full state."""

    host: HostId
    push: HostPush


class Wake(Value):
    """Wake the orchestrator of a job whose owner is away. It may be lost, and come twice."""

    holder: JobId
    queue: str


class WakeAt(Value):
    """Send `Ticked` at this monotonic time. The newest `WakeAt` replaces all earlier ones."""

    at_s: float


Action = Reply | ReplyError | PushToSession | PushToHost | Wake | WakeAt
