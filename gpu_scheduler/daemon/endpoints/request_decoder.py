"""From a request of either door to an event of the core: the same ops, the same checks.

The decoder decodes, stamps the time, and refuses what must not reach the core: unknown ops, wrong
fields, new grants while the journal has no room. Everything else is the core's to decide.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from corekit.aio.clock import Clock
from corekit.aio.newer import known
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import HostId, SessionId
from gpu_scheduler.core import events as on
from gpu_scheduler.daemon.access.authorizer import Authorizer, Caller
from gpu_scheduler.daemon.endpoints.hello_pages import HelloPages
from gpu_scheduler.daemon.endpoints.unknown_values import read_reworded
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.model import Door
from gpu_scheduler.protocol import host as host_words
from gpu_scheduler.protocol import ops, requester
from gpu_scheduler.protocol.codec import VERSION, Body

logger = logging.getLogger(__name__)

T = TypeVar("T")
Fields = Mapping[str, Any]

#: Ops that only `hello` sessions may send, in the words of each role.
HOST_OPS: Mapping[str, type[Any]] = {
    "report": host_words.Report,
    "session": host_words.SessionChange,
    "cut": host_words.Cut,
    "door": host_words.DoorOpened,
    "installed": host_words.MoreInstalled,
    "installs": host_words.InstallsAsked,
}

_EVENTS: Mapping[type[ops.Op], type[on.Asked]] = {
    requester.Beat: on.SessionBeat,
    requester.Attempt: on.AttemptAsked,
    requester.Adopt: on.AdoptAsked,
    requester.RecordOf: on.RecordAsked,
    requester.Records: on.RecordsAsked,
    requester.Handle: on.HandleGiven,
    requester.HandBack: on.HandBackAsked,
    requester.Renew: on.RenewAsked,
    requester.StagedOp: on.StagedTold,
    requester.Release: on.ReleaseAsked,
    requester.FailAttempt: on.AttemptFailed,
    requester.Finish: on.FinishAsked,
    requester.Reopen: on.ReopenAsked,
    requester.Withdraw: on.WithdrawAsked,
    requester.Explain: on.ExplainAsked,
    requester.Inventory: on.InventoryAsked,
    requester.Leases: on.LeasesAsked,
    requester.Queue: on.QueueAsked,
    requester.Forget: on.ForgetAsked,
    requester.ParametersOf: on.ParametersAsked,
    requester.SetParameter: on.SetAsked,
    requester.Resize: on.ResizeAsked,
}

#: Ops that tell what happened, end something or take it over: a key that a newer client adds cannot
#: make them do more than was asked. In every other op it may be a condition, which is refused.
_TELLING = frozenset(
    {
        requester.Beat,
        requester.Adopt,
        requester.Handle,
        requester.HandBack,
        requester.StagedOp,
        requester.Release,
        requester.FailAttempt,
        requester.Finish,
        requester.Reopen,
        requester.Withdraw,
    }
)

#: Ops that may grant something.
_GRANTS = frozenset({requester.Attempt, requester.Reserve})


class Room(Protocol):
    """What the decoder asks of the journal."""

    @property
    def has_room(self) -> bool:
        """False: nothing new may be granted."""
        ...


class RequestDecoder:
    """Decodes requests and hands them in."""

    def __init__(
        self,
        clock: Clock,
        room: Room,
        submit: Callable[[on.Event], None],
        metrics: Metrics,
        authorizer: Authorizer,
    ) -> None:
        self._clock = clock
        self._room = room
        self._submit = submit
        self._metrics = metrics
        self._authorizer = authorizer

    def requester_hello(self, caller: Caller, fields: Fields, reply_to: str) -> SessionId:
        """The session that says hello. Raises INVALID, DENIED."""
        hello = _known(requester.Hello, fields)
        _same_version(hello.version)
        self._authorizer.may(caller, "beat", hello)
        session = SessionId(caller.session(hello.session))
        self._hand_in("hello", on.SessionHello, {"session": session, "reply_to": reply_to})
        return session

    def host_hello(
        self, caller: Caller, fields: Fields, reply_to: str, pages: HelloPages
    ) -> HostId:
        """The host that says hello; `pages` are its connection's. Raises INVALID, DENIED."""
        hello = _known(host_words.HostHello, fields)
        _same_version(hello.version)
        self._authorizer.host_may(caller, hello.host)
        pages.begin(hello, reply_to)
        self._hand_in_whole(pages)
        return hello.host

    def _hand_in_whole(self, pages: HelloPages) -> None:
        if (whole := pages.whole()) is not None:
            hello, installed, reply_to = whole
            said = _fields_of(hello)
            del said["version"], said["more"]
            said |= {"installed": installed, "reply_to": reply_to}
            self._hand_in("hello", on.HostHello, said)

    def ask(self, caller: Caller, session: SessionId, op: str, body: Body, reply_to: str) -> None:
        """Any op of a requester session; its answer comes by `reply_to`. Raises AppError."""
        cls = ops.OPS.get(op)
        if cls is None:
            body.plain()  # a line that is no JSON is worse
            raise invalid(f"op {op!r} is unknown{_did_you_mean(op, ops.OPS)}")
        value = known(logger, body.read_known(cls, op)) if cls in _TELLING else body.read(cls, op)
        self._authorizer.may(caller, op, value)
        if cls in _GRANTS and not self._room.has_room:
            text = "the scheduler's journal has no room for new grants; free space on its disk"
            raise AppError(ErrorCode.EXHAUSTED, text)
        asked = _fields_of(value)
        event = _EVENTS.get(cls) or self._reworded(caller, value, asked)
        asked["session"], asked["reply_to"] = session, reply_to
        self._hand_in(op, event, asked)

    def _reworded(self, caller: Caller, value: ops.Op, asked: dict[str, Any]) -> type[on.Asked]:
        """The event of an op that does not have its words; `asked` gets the event's."""
        match value:
            case requester.Reserve():
                if value.door is Door.PORT and not value.sources and caller.peer:
                    asked["sources"] = (caller.peer,)
                return on.ReserveAsked
            case requester.Orphans():
                asked["foreign"] = self._authorizer.foreign_to(caller)
                return on.OrphansAsked
            case requester.Watch():
                asked["all_leases"] = asked.pop("all")
                asked["sees_all"] = caller.sees_all
                return on.WatchAsked
            case requester.Transfer():  # to a session of the same key, unless another is named
                asked["to"] = value.to if "/" in value.to else caller.session(value.to)
                return on.TransferAsked
            case _:
                asked["drained"] = isinstance(value, requester.Drain)
                return on.DrainAsked

    def told(self, host: HostId, op: str, body: Body, reply_to: str, pages: HelloPages) -> None:
        """Any op of a host session. Raises AppError."""
        cls = HOST_OPS.get(op)
        if cls is None:
            body.plain()
            raise invalid(f"op {op!r} of a host is unknown{_did_you_mean(op, HOST_OPS)}")
        value = _of_host(cls, op, body)
        envelope = {"host": host, "reply_to": reply_to}
        match value:
            case host_words.Report():
                self._hand_in(op, on.HostReported, {**_fields_of(value), **envelope})
            case host_words.SessionChange():
                told = {"change" if k == "state" else k: v for k, v in _fields_of(value).items()}
                self._hand_in(op, on.LeaseSessionTold, {**told, **envelope})
            case host_words.MoreInstalled():
                pages.add(value.leases, more=value.more)
                self._hand_in_whole(pages)
            case host_words.InstallsAsked():
                self._hand_in(op, on.InstallsAsked, {**_fields_of(value), **envelope})
            case host_words.DoorOpened():
                self._hand_in(op, on.DoorTold, {**_fields_of(value), **envelope})
            case _:
                self._hand_in(op, on.CutTold, {"lease": value.lease, **envelope})

    def host_left(self, host: HostId) -> None:
        """Its connection ended."""
        self._hand_in("left", on.HostLeft, {"host": host})

    def _hand_in(self, op: str, cls: type[Any], fields: dict[str, Any]) -> None:
        self._metrics.requests[op] += 1
        fields["at_s"], fields["wall_s"] = self._clock.monotonic_s(), self._clock.wall_s()
        self._submit(cls(**fields))


def _fields_of(value: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(value)


def _known(cls: type[T], fields: Fields) -> T:
    """A hello, also a newer one's: whoever says more than is known here is let in all the same."""
    return known(logger, read_reworded(cls, fields, "hello"))


def _of_host(cls: type[Any], op: str, body: Body) -> Any:
    """What a host tells, also a newer one."""
    try:
        return known(logger, body.read_known(cls, op))
    except AppError:
        return known(logger, read_reworded(cls, body.plain(), op))


def _same_version(version: int) -> None:
    if version != VERSION:
        raise invalid(f"protocol version {version} is not spoken here; this is version {VERSION}")


def _did_you_mean(op: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(op, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"
