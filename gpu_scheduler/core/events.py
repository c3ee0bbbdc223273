"""All input events of the scheduler.

An op of the protocol arrives as it was decoded, in `Asked` or `HostAsked`. `at_s` is monotonic and
the only clock for deadlines; `wall_s` is written into records, for people and for the order across
restarts. `reply_to` is the daemon's opaque token for the request: exactly one `Reply` or
`ReplyError` carries it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from corekit.ids import HostId, SessionId
from corekit.values import Value, field
from gpu_scheduler.model import Device
from gpu_scheduler.protocol.host import HostOp
from gpu_scheduler.protocol.ops import Op

OpT_co = TypeVar("OpT_co", bound=Op[Value], covariant=True)
HostOpT_co = TypeVar("HostOpT_co", bound=HostOp, covariant=True)


class Happened(Value):
    """The clocks of every event."""

    at_s: float  #: monotonic seconds
    wall_s: float  #: seconds since 1970, for records


class EpochBegan(Happened):
    """Recovery is complete: the first event of a run. Hosts and sessions get time to reconnect."""

    run: str = ""  #: random: unique to each run, even if the journal was copied
    build: str = ""  #: version of this ssgmd
    socket: str = ""  #: addresses that it advertises, for standbys; "" = none
    http: str = ""
    master_key: str = ""  #: fingerprint of its master key
    wakes: bool = False  #: it has a waker: orchestrators may leave their jobs


class Ticked(Happened):
    """The time of a `WakeAt` has come; a spurious or repeated `Ticked` does no harm."""


class CapacityDeclared(Happened):
    """The configuration names devices that may register later; replaces earlier ones."""

    devices: tuple[Device, ...]


class RoomChanged(Happened):
    """The journal's disk is full or has room again; nothing is granted without room."""

    has_room: bool


class Asked(Happened, Generic[OpT_co]):
    """An op of a requester session; every op proves that the session is alive."""

    session: SessionId
    reply_to: str
    op: OpT_co
    foreign: tuple[str, ...] = ()  #: keys whose ownerless jobs the caller may not take
    sees_all: bool = True  #: False: other keys' leases are shown without holder details
    #: By number, the floors of `keep_warm` that the caller may not declare, and why.
    denied: Mapping[int, str] = field(default_factory=dict)


class HostAsked(Happened, Generic[HostOpT_co]):
    """An op of a host."""

    host: HostId
    reply_to: str
    op: HostOpT_co


class HostLeft(Happened):
    """The connection of a host ended, and the host has no newer connection."""

    host: HostId


Event = (
    EpochBegan
    | Ticked
    | CapacityDeclared
    | RoomChanged
    | Asked[Any]  # any op
    | HostAsked[Any]
    | HostLeft
)
