"""The host session: ops of a GPU host, and the pushes that it obeys.

A host sends ops (`Hello`, `Report`, `SessionChange`, `Cut`); the scheduler pushes `Install`, `End`,
`Staged` and `Resize` over one ordered channel. Every op is idempotent: the host repeats what was
not acknowledged after a reconnect.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from corekit.addresses import parse_address
from corekit.errors import AppError
from corekit.ids import HostId, LeaseId
from corekit.values import Checked, Meta, Value
from gpu_scheduler.model import Device, Door, EndReason, LeaseLifetime, LeaseState, Share, Usage
from gpu_scheduler.names import NAME, name_problem

#: A sentence for people is not a log.
DETAIL_CHARACTERS_MAX = 2000
#: A host has at most this many devices in one message; the largest single hosts have 16.
DEVICES_MAX = 256
#: Leases of one hello; the default of `leases_max` for the whole scheduler.
INSTALLED_MAX = 100_000
#: There are seven.
MIDDLEWARES_MAX = 64


def _address_problem(text: str) -> str | None:
    try:
        parse_address(text)
    except AppError as error:
        return f"{error.message}"
    return name_problem(text)


def _optional_name(text: str) -> str | None:
    return name_problem(text, at_least=0)


LeaseName = Annotated[LeaseId, NAME]
Address = Annotated[str, Meta(extra={"problem": _address_problem})]
#: A name that may be left out.
OptionalName = Annotated[str, Meta(extra={"problem": _optional_name})]
Devices = Annotated[tuple[Device, ...], Meta(max_length=DEVICES_MAX)]
Number = Annotated[int, Meta(ge=0)]


class SessionState(StrEnum):
    """A step of the session of a lease, as its gateway reports it."""

    OPENED = "opened"
    FREED = "freed"
    CLOSED = "closed"


class Install(Value):
    """A lease made known to one host; only then its doors open there."""

    lease: LeaseId
    fence: int  #: rises with every grant of the whole scheduler
    #: Hex of the 32 bytes HMAC-SHA256(master key, lease ‖ fence ‖ host); "" before the daemon adds
    #: it, and in no message.
    secret: str
    state: LeaseState  #: ENDING: the session goes on, its shares are given back
    shares: tuple[Share, ...]  #: only those on this host
    tenant: str
    hold: LeaseLifetime
    door: Door
    sources: tuple[str, ...] = ()  #: Door.PORT: networks whose machines may connect
    #: The one whose server listens at that port; None = the built-in plane
    middleware: str | None = None
    cap_s: float | None  #: DEADLINE holds: seconds from receipt to the lease's end; else None
    connect_by_s: float | None  #: seconds from receipt to the first session; None until staged


class InstallPush(Value):
    """Push `install`."""

    install: Install


class End(Value):
    """The lease is over: close its doors, kill what runs on it, then answer `cut`."""

    lease: LeaseId
    fence: int  #: 0: a lease the scheduler no longer knows
    reason: EndReason


class Staged(Value):
    """The envelope is out: from now on a first session must come within `connect_by_s`."""

    lease: LeaseId
    connect_by_s: float  #: seconds from receipt


class Resize(Value):
    """Its shares here have another elastic limit of compute."""

    lease: LeaseId
    compute_limit_pct: int


HostPush = InstallPush | End | Staged | Resize

#: Wire name of every push to a host.
HOST_PUSH_NAMES: Mapping[type[Value], str] = {
    InstallPush: "install",
    End: "end",
    Staged: "staged",
    Resize: "resize",
}


class HostHello(Checked, omit_defaults=True):
    """First request of a host session (`role: "host"`) → HostWelcome | CONFLICT | INVALID.

    CONFLICT: it has seen a later epoch, or another program of this name is up.
    """

    host: Annotated[HostId, NAME]
    incarnation: Annotated[str, NAME]  #: new at each start of the host's program
    gateway: Address | None  #: None = watched only, its devices are advisory
    devices: Devices
    epoch_seen: Number  #: highest scheduler epoch that this host obeyed
    installed: tuple[LeaseId, ...]
    version: int
    #: What its gateway serves besides the built-in plane, and `builtin` itself where it has one.
    middlewares: Annotated[tuple[Annotated[str, NAME], ...], Meta(max_length=MIDDLEWARES_MAX)] = ()
    run_seen: OptionalName = ""  #: of that epoch, as `HostWelcome.run`
    #: More of `installed` follows in `MoreInstalled`, right behind this; only then it is answered.
    more: bool = False


class HostWelcome(Value, omit_defaults=True):
    """The full state: what is not in `installs` the host cuts.

    With `more` this is its first page; the host asks for the others by `InstallsAsked`, and only
    all of them together are the full state. A host refuses a lower epoch, and the epoch it knows
    from another run: that is a copy's.
    """

    epoch: int
    installs: tuple[Install, ...]
    run: str = ""  #: random, of one run of the scheduler
    more: bool = False
    until: int = 0  #: highest fence of the state, with `more`; what was granted later is pushed


class MoreInstalled(Value):
    """Op `installed`: what did not fit into the hello; under the hello's id, which is answered."""

    leases: tuple[LeaseId, ...]
    more: bool = False  #: and there are still others


class InstallsAsked(Checked):
    """Op `installs`: the next page of a full state → InstallsPage | NOT_FOUND."""

    after: Number  #: fence of the last install that came
    until: Number  #: as in the welcome


class InstallsPage(Value):
    """Installs above `after` and up to `until`, by fence."""

    installs: tuple[Install, ...]
    more: bool = False


class Report(Checked):
    """Every `host_report_s`; a silent host is stale, then lost. An empty one proves life.

    Answered by Done, or by NOT_FOUND: the host is not known, it must send its hello.
    """

    devices: Devices | None = None  #: all of them; None = as in the last report
    #: Of the host's devices whose figures changed, each once.
    usage: Annotated[tuple[Usage, ...], Meta(max_length=DEVICES_MAX)] = ()


class SessionChange(Checked):
    """Op `session` → Done: one step of a lease's session; push `end` if the lease is over."""

    lease: LeaseName
    state: SessionState
    nonce: OptionalName  #: of the session that claimed the lease; "" = it never had one
    reason: EndReason | None = None  #: of `closed`; None means DONE
    detail: Annotated[str, Meta(max_length=DETAIL_CHARACTERS_MAX)] = ""


class DoorOpened(Checked):
    """Op `door` → Done: the lease's own port listens; push `end` if the lease is over."""

    lease: LeaseName
    address: Address


class Cut(Checked):
    """Op `cut` → Done: the lease's processes are gone from this host and its memory is back.

    A fact for people: promises never wait for it.
    """

    lease: LeaseName


HostOp = HostHello | Report | SessionChange | Cut | DoorOpened | InstallsAsked

#: Wire name → class of every op of a host but `hello`.
HOST_OPS: Mapping[
    str, type[Report | SessionChange | Cut | DoorOpened | MoreInstalled | InstallsAsked]
] = {
    "report": Report,
    "session": SessionChange,
    "cut": Cut,
    "door": DoorOpened,
    "installed": MoreInstalled,
    "installs": InstallsAsked,
}
