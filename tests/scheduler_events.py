"""Events of the scheduler's core in tests: of an op's class and its fields, or of an event's."""

from __future__ import annotations

from typing import Any, get_args

from corekit.ids import HostId, SessionId
from gpu_scheduler.core import events as on
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.codec import VERSION
from gpu_scheduler.protocol.host import HostHello, HostOp


def event_of(
    kind: type[Any], *, reply_to: str = "r", at_s: float, wall_s: float, **fields: Any
) -> on.Event:
    """The event of one op: `session` or `host` is who sends it, the other fields are the op's."""
    now: dict[str, Any] = {"at_s": at_s, "wall_s": wall_s}
    if issubclass(kind, ops.Op):
        session = SessionId(fields.pop("session", "s"))
        if kind is ops.Hello:
            fields = {"session": session, "version": VERSION}
        own: dict[str, Any] = {
            name: fields.pop(name) for name in ("foreign", "sees_all", "denied") if name in fields
        }
        return on.Asked(session=session, reply_to=reply_to, op=kind(**fields), **own, **now)
    if kind in get_args(HostOp):
        host = HostId(fields["host"] if kind is HostHello else fields.pop("host"))
        fields |= {"version": VERSION} if kind is HostHello else {}
        return on.HostAsked(host=host, reply_to=reply_to, op=kind(**fields), **now)
    event: on.Event = kind(**fields, **now)
    return event


def is_answered(kind: type[Any]) -> bool:
    """Whether events of this kind have exactly one answer."""
    return issubclass(kind, ops.Op) or kind in get_args(HostOp)
