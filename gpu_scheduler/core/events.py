"""Everything that can happen to the scheduler.

An op of the protocol comes as it was decoded, in `Asked` or `HostAsked`. `at_s` is monotonic and
the only clock of deadlines; `wall_s` is written into records for people and for order across
restarts. `reply_to` is the daemon's opaque token of the request: exactly one `Reply` or
`ReplyError` carries it back.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from corekit.ids import HostId, SessionId
from corekit.values import Value
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
    """Recovery is complete: first event of every run. Hosts and sessions have time to return."""

    run: str = ""  #: random: no two runs have it in common, whatever was copied
    build: str = ""  #: version of this ssgmd


class Ticked(Happened):
    """The moment of a `WakeAt` has come; a spurious or doubled one does no harm."""


class CapacityDeclared(Happened):
    """Configuration names devices that may register later; replaces what was declared before."""

    devices: tuple[Device, ...]


class RoomChanged(Happened):
    """The journal's disk is full, or has room again: without, nothing is granted."""

    has_room: bool


class Asked(Happened, Generic[OpT_co]):
    """An op of a requester session; any of them proves that the session lives."""

    session: SessionId
    reply_to: str
    op: OpT_co
    foreign: tuple[str, ...] = ()  #: keys whose ownerless jobs the caller may not take
    sees_all: bool = True  #: False: of other keys' leases without the details of their holders


class HostAsked(Happened, Generic[HostOpT_co]):
    """An op of a host."""

    host: HostId
    reply_to: str
    op: HostOpT_co


class HostLeft(Happened):
    """The connection of a host ended, and no newer one of it is there."""

    host: HostId


Event = (
    EpochBegan
    | Ticked
    | CapacityDeclared
    | RoomChanged
    | Asked[Any]  # of any op
    | HostAsked[Any]
    | HostLeft
)
