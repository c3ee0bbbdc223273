"""The host session: what a GPU host says to the scheduler, and what it is told.

A host speaks ops (`Hello`, `Report`, `SessionChange`, `Cut`); the scheduler pushes `Install`,
`End`, `Staged` and `Resize` over one ordered channel. Every op is idempotent: the host repeats what
was not acknowledged after a reconnect.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.errors import invalid
from corekit.ids import HostId, LeaseId
from corekit.values import Value
from gpu_scheduler.core.events import SessionChange as SessionState  # opened, freed, closed
from gpu_scheduler.model import Device, Door, EndReason, LeaseLifetime, LeaseState, Share, Usage
from gpu_scheduler.names import named
from gpu_scheduler.protocol.address import parse_address

#: A sentence for people is not a log.
DETAIL_CHARACTERS_MAX = 2000
#: A host has at most this many devices in one message; the largest single hosts have 16.
DEVICES_MAX = 256
#: Leases of one host, as it may say it has; the default of `leases_max` for the whole scheduler.
INSTALLED_MAX = 100_000
#: There are seven.
MIDDLEWARES_MAX = 64


class Install(Value):
    """A lease made known to one host; only then its doors open there."""

    lease: LeaseId
    fence: int  #: rises with every grant of the whole scheduler
    secret: str  #: hex of the 32 bytes HMAC-SHA256(master key, lease ‖ fence ‖ host)
    state: LeaseState  #: ENDING: the session goes on, its shares are given back
    shares: tuple[Share, ...]  #: only those on this host
    tenant: str
    hold: LeaseLifetime
    door: Door
    sources: tuple[str, ...] = ()  #: Door.PORT: networks whose machines may connect
    middleware: str | None = (
        None  #: whose server stands behind that port; None = the built-in plane
    )
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


HostPush = Install | End | Staged | Resize

#: Wire name of every push to a host.
HOST_PUSH_NAMES: Mapping[type[HostPush], str] = {
    Install: "install",
    End: "end",
    Staged: "staged",
    Resize: "resize",
}


class HostHello(Value):
    """First request of a host session (`role: "host"`); answered by `HostWelcome`."""

    host: HostId
    incarnation: str  #: new at each start of the host's program: its old leases are gone with it
    gateway: str | None  #: "address:port"; None = watched only, its devices are advisory
    devices: tuple[Device, ...]
    epoch_seen: int  #: highest scheduler epoch this host obeyed
    installed: tuple[LeaseId, ...]
    version: int
    #: What its gateway serves besides the built-in plane, and `builtin` itself where it has one.
    middlewares: tuple[str, ...] = ()
    run_seen: str = ""  #: whose epoch that was, as `HostWelcome.run`
    #: More of `installed` follows in `MoreInstalled`, right behind this; only then it is answered.
    more: bool = False

    def __post_init__(self) -> None:
        if len(self.middlewares) > MIDDLEWARES_MAX:
            raise invalid(f"{len(self.middlewares)} middlewares; a host offers {MIDDLEWARES_MAX}")
        for name in self.middlewares:
            named("middlewares:", name)
        named("host", self.host)
        named("incarnation", self.incarnation)
        named("gateway", self.gateway)
        named("run_seen", self.run_seen or None)
        if self.gateway is not None:
            parse_address(self.gateway)
        if self.epoch_seen < 0:
            raise invalid(f"epoch_seen {self.epoch_seen} must be 0 or more")
        _limited(len(self.devices))


def _limited(devices: int) -> None:
    if devices > DEVICES_MAX:
        raise invalid(f"{devices} devices; a host may have {DEVICES_MAX}")


class HostWelcome(Value):
    """The full state: what is not in `installs` the host cuts.

    With `more` this is its first page; the host asks for the others by `InstallsAsked`, and only
    all of them together are the full state. `more` and `until` are left out of a state that is
    whole. A host refuses a lower epoch, and the epoch it knows from another run: that is a copy's.
    """

    epoch: int
    installs: tuple[Install, ...]
    run: str = ""  #: random, of one run of the scheduler
    more: bool = False
    until: int = 0  #: highest fence of the state; what was granted later is pushed


class MoreInstalled(Value):
    """Op `installed`: what did not fit into the hello; under the hello's id, which is answered."""

    leases: tuple[LeaseId, ...]
    more: bool = False  #: and there are still others


class InstallsAsked(Value):
    """Op `installs`: the next page of a full state → InstallsPage | NOT_FOUND."""

    after: int  #: fence of the last install that came
    until: int  #: as the welcome said

    def __post_init__(self) -> None:
        if min(self.after, self.until) < 0:
            raise invalid("after and until must be 0 or more")


class InstallsPage(Value):
    """Installs above `after` and up to `until`, by fence."""

    installs: tuple[Install, ...]
    more: bool = False


class Report(Value):
    """Every `host_report_s`; a silent host is stale, then lost. An empty one proves life."""

    devices: tuple[Device, ...] | None = None  #: all of them; None = as said last
    usage: tuple[Usage, ...] = ()  #: of the host's devices whose figures changed, each once

    def __post_init__(self) -> None:
        _limited(len(self.devices or ()))
        _limited(len(self.usage))


class SessionChange(Value):
    """Op `session`: one step of a lease's session."""

    lease: LeaseId
    state: SessionState
    nonce: str  #: of the session that claimed the lease
    reason: EndReason | None = None  #: of `closed`; None means DONE
    detail: str = ""

    def __post_init__(self) -> None:
        named("lease", self.lease)
        named("nonce", self.nonce or None)  # one that never had a session has none
        if len(self.detail) > DETAIL_CHARACTERS_MAX:
            text = f"detail has {len(self.detail)} characters; at most {DETAIL_CHARACTERS_MAX}"
            raise invalid(text)


class DoorOpened(Value):
    """Op `door`: the lease's own port listens at this "address:port"."""

    lease: LeaseId
    address: str

    def __post_init__(self) -> None:
        named("lease", self.lease)
        named("address", self.address)
        parse_address(self.address)


class Cut(Value):
    """The processes of an ended lease are gone from this host and its memory is back."""

    lease: LeaseId

    def __post_init__(self) -> None:
        named("lease", self.lease)


#: Exported for gateways: `SessionState.OPENED`, `FREED`, `CLOSED`.
__all__ = [
    "DEVICES_MAX",
    "HOST_PUSH_NAMES",
    "INSTALLED_MAX",
    "Cut",
    "DoorOpened",
    "End",
    "HostHello",
    "HostPush",
    "HostWelcome",
    "Install",
    "InstallPush",
    "InstallsAsked",
    "InstallsPage",
    "MoreInstalled",
    "Report",
    "Resize",
    "SessionChange",
    "SessionState",
    "Staged",
]
