"""What the scheduler asks the daemon to do. Actions of one decision are performed in their order.

Answers and pushes are the values of the protocol, but for secrets: the daemon adds those to a
`GrantedLease` and to an `Install`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corekit.errors import ErrorCode
from corekit.ids import HostId, SessionId
from corekit.values import Value, field
from gpu_scheduler.protocol.answers import Push
from gpu_scheduler.protocol.host import HostPush


class Reply(Value):
    """The good answer of one request."""

    reply_to: str
    answer: Value


class ReplyError(Value):
    """The `error` of an answer; details hold plain values or a `Record` (encode them)."""

    reply_to: str
    code: ErrorCode
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


class PushToSession(Value):
    """Dropped when the session is not connected: it asks again when it returns."""

    session: SessionId
    push: Push


class PushToHost(Value):
    """Dropped when the host is away: its hello is answered with the full state."""

    host: HostId
    push: HostPush


class WakeAt(Value):
    """Send `Ticked` at this monotonic moment. The newest replaces all earlier ones."""

    at_s: float


Action = Reply | ReplyError | PushToSession | PushToHost | WakeAt
