"""The host session: ops of a GPU host, and the pushes that it executes.

A host sends ops (`Hello`, `Report`, `SessionChange`, `Cut`, `Draining`); the scheduler pushes
`Install`, `End`, `Staged` and `Resize` over one ordered channel. Every op is idempotent: after a
reconnect, the host repeats the ops that were not acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from corekit.errors import AppError
from corekit.ids import DeviceId, HostId, LeaseId
from corekit.net.addresses import parse_address
from corekit.values import Checked, Meta, Value, field
from gpu_scheduler.data_sets import DataSet, HeldData
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import (
    LENGTH_S_MAX,
    Batch,
    DataDigests,
    Device,
    DeviceResidents,
    Door,
    EndReason,
    LeaseLifetime,
    LeaseState,
    MemoryMib,
    Share,
    Usage,
    Word,
)
from gpu_scheduler.names import NAME, name_problem
from gpu_scheduler.protocol.ops import Detail, LeaseName

#: The most characters of the reason of a drain.
REASON_CHARACTERS_MAX = 200
#: The most devices of a host in one message; the largest single hosts have 16.
DEVICES_MAX = 256
#: The most leases in one hello: the default of `leases_max` for the whole scheduler.
INSTALLED_MAX = 100_000
#: The most MiB of models of one lease: an upper bound for a mistake.
LOADED_MIB_MAX = 2**40
#: The most middlewares of a host; there are seven kinds.
MIDDLEWARES_MAX = 64


def _address_problem(text: str) -> str | None:
    try:
        parse_address(text)
    except AppError as error:
        return f"{error.message}"
    return name_problem(text)


Address = Annotated[str, Meta(extra={"problem": _address_problem})]
Devices = Annotated[tuple[Device, ...], Meta(max_length=DEVICES_MAX)]
Number = Annotated[int, Meta(ge=0)]


class SessionState(StrEnum):
    """A step of the session of a lease, as its gateway reports it."""

    KNOCKED = "knocked"  #: of a lease granted ahead: a session is proven, and waits for the shares
    LEFT = "left"  #: after `knocked`: no session waits any more, and none has opened
    OPENED = "opened"
    FREED = "freed"
    CLOSED = "closed"


class WarmLimits(Checked):
    """Limits of the warm workers of each device of a host."""

    workers_max: Number = 4
    idle_s_max: Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)] = 600.0  #: without a lease
    memory_pct_max: Annotated[int, Meta(ge=0, le=100)] = 50  #: of the memory of the device
    loads_max: Number = 1  #: that load at once, for leases granted ahead
    #: Drained devices: none stay there.
    none_on: Annotated[tuple[DeviceId, ...], Meta(max_length=DEVICES_MAX)] = ()


class Install(Value):
    """A lease to install on one host; only then do its endpoints open there."""

    lease: LeaseId
    fence: int  #: rises with every grant of the whole scheduler
    #: Hex of the 32 bytes HMAC-SHA256(master key, lease ‖ fence ‖ host); "" before the daemon adds
    #: it, and in no message.
    secret: str
    state: LeaseState  #: ENDING: the session continues, its shares are released
    shares: tuple[Share, ...]  #: only those on this host
    tenant: str
    hold: LeaseLifetime
    door: Door
    sources: tuple[str, ...] = ()  #: Door.PORT: networks whose machines may connect
    #: The middleware whose server listens on that port; None = the built-in plane.
    middleware: str | None = None
    workload: str | None = None  #: of its request; None = its worker ends with it
    batch: Batch | None = None  #: of its request; needs a workload
    #: The warm workers that the lease uses, one for each of its devices that has one.
    residents: tuple[str, ...] = ()
    #: The warm workers that must be gone before the endpoints of the lease open.
    evict: tuple[str, ...] = ()
    cap_s: float | None  #: DEADLINE holds: seconds from receipt to the lease's end; else None
    connect_by_s: float | None  #: seconds from receipt to the first session; None until staged
    #: True: granted before its shares are free. A session of it waits; the next install of the
    #: lease, without it, gives it the shares.
    ahead: bool = False
    #: Of its request; the host fetches those that it lacks, before it opens the endpoints.
    data_sets: tuple[DataSet, ...] = ()


class InstallPush(Value):
    """Push `install`."""

    install: Install


class End(Value):
    """The lease is over: close its endpoints, kill its processes, then send `cut`."""

    lease: LeaseId
    fence: int  #: 0: a lease that the scheduler no longer knows
    reason: EndReason


class Staged(Value):
    """The envelope is stored: the first session must start within `connect_by_s` from now."""

    lease: LeaseId
    connect_by_s: float  #: seconds from receipt


class Resize(Value):
    """The shares of a lease on this host have a new elastic limit of compute."""

    lease: LeaseId
    compute_limit_pct: int | float


class Preempt(Value):
    """Push `preempt`: the lease ends in `grace_s`; its session, if one is open, gets the notice.

    For a request of higher priority, or because the host drains.
    """

    lease: LeaseId
    grace_s: float


class WarmLimitsPush(Value):
    """Push `warm_limits`: an operator changed the limits of warm workers, or drained devices."""

    limits: WarmLimits


class KeepWarmPush(Value):
    """Push `keep_warm`: all warm floors of the host, in place of those before."""

    floors: tuple[HostFloor, ...]


HostPush = InstallPush | End | Staged | Resize | Preempt | WarmLimitsPush | KeepWarmPush

#: Wire name → class of every push to a host.
HOST_PUSHES: Mapping[str, type[HostPush]] = {
    "install": InstallPush,
    "end": End,
    "staged": Staged,
    "resize": Resize,
    "preempt": Preempt,
    "warm_limits": WarmLimitsPush,
    "keep_warm": KeepWarmPush,
}


class HostHello(Checked, omit_defaults=True):
    """First request of a host session (`role: "host"`) → HostWelcome | CONFLICT | INVALID.

    CONFLICT: the host has seen a later epoch, or another program with this name is up.
    """

    host: Annotated[HostId, NAME]
    incarnation: Annotated[str, NAME]  #: new at each start of the host's program
    gateway: Address | None  #: None = only watched: its devices are advisory
    devices: Devices
    epoch_seen: Number  #: highest scheduler epoch that this host accepted
    installed: tuple[LeaseId, ...]
    version: int
    #: Middlewares that its gateway serves, with `builtin` if it has the built-in plane.
    middlewares: Annotated[tuple[Annotated[str, NAME], ...], Meta(max_length=MIDDLEWARES_MAX)] = ()
    run_seen: Word = ""  #: of that epoch, as `HostWelcome.run`
    #: True: the rest of `installed` follows at once in `MoreInstalled`, before the answer.
    more: bool = False
    #: All warm workers of the host.
    residents: Annotated[tuple[DeviceResidents, ...], Meta(max_length=DEVICES_MAX)] = ()
    ephemeral: bool = False  #: forgotten `forget_after_s` after it is lost
    oldest_version: int | None = None  #: as in a requester's hello
    data: DataDigests = field(default_factory=dict)  #: its data sets, `gpud --data`
    programs: DataDigests = field(default_factory=dict)  #: its programs, `gpud --program`
    advance: bool = False  #: its gateway lets sessions of leases granted ahead wait
    #: Leases with a session that knocked and still waits, or is open: its opening may not be
    #: reported yet.
    waiting: Annotated[tuple[LeaseId, ...], Meta(max_length=INSTALLED_MAX)] = ()
    loads_ahead: bool = False  #: workers of such leases load there before they have their shares
    #: For declared data sets, `gpud --data-space`; 0: it fetches none.
    data_space_mib: MemoryMib = 0
    held: HeldData = field(default_factory=HeldData)  #: all data sets that it has


class HostWelcome(Value, omit_defaults=True):
    """The full state: the host cuts all leases that are absent from `installs`.

    With `more` this is the first page; the host requests the others with `InstallsAsked`, and only
    all pages together are the full state. A host refuses a lower epoch, and a known epoch with
    another run, because that scheduler runs on a copy of the journal.
    """

    epoch: int
    installs: tuple[Install, ...]
    run: str = ""  #: random, unique to one run of the scheduler
    more: bool = False
    until: int = 0  #: highest fence of the state, with `more`; later grants are pushed
    warm: WarmLimits = field(default_factory=WarmLimits)
    floors: tuple[HostFloor, ...] = ()


class MoreInstalled(Value):
    """Op `installed`: leases that did not fit into the hello, sent with the id of the hello."""

    leases: tuple[LeaseId, ...]
    more: bool = False  #: True: another `installed` follows


class InstallsAsked(Checked):
    """Op `installs`: the next page of a full state → InstallsPage | NOT_FOUND."""

    after: Number  #: fence of the last install received
    until: Number  #: as in the welcome


class InstallsPage(Value):
    """Installs above `after` and up to `until`, by fence."""

    installs: tuple[Install, ...]
    more: bool = False


class Report(Checked):
    """Op `report`, every `host_report_s`, even if empty; a silent host is stale, then lost.

    Answered with Done, or with NOT_FOUND: the host is unknown and must send its hello.
    """

    devices: Devices | None = None  #: all of them; None = as in the last report
    #: For the devices whose figures changed, each once.
    usage: Annotated[tuple[Usage, ...], Meta(max_length=DEVICES_MAX)] = ()
    residents: Annotated[tuple[DeviceResidents, ...], Meta(max_length=DEVICES_MAX)] = ()
    held: HeldData | None = None  #: the change of its data sets; None = none


class SessionChange(Checked):
    """Op `session` → Done: one step of a lease's session; push `end` if the lease is over."""

    lease: LeaseName
    state: SessionState
    nonce: Word  #: of the session that claimed the lease; "" = no session did
    reason: EndReason | None = None  #: of `closed`; None means DONE
    detail: Detail = ""
    #: Of `freed` and `closed`: seconds that its workers spent loading; 0 = they were warm; None =
    #: unknown.
    loading_s: Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)] | None = None
    #: Of `freed` and `closed`: MiB of the models that they loaded; None = unknown.
    loaded_mib: Annotated[int, Meta(ge=0, le=LOADED_MIB_MAX)] | None = None
    #: Of `freed` and `closed`: seconds that its worker loaded ahead, while another lease had the
    #: shares; None = it did not.
    loaded_ahead_s: Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)] | None = None
    #: Of `opened`: seconds that the session waited for its shares; None = unknown.
    waited_s: Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)] | None = None
    #: Of `opened`: its function started a sandbox (True) or used one again; None = unknown.
    new_sandbox: bool | None = None
    #: Of `freed` and `closed`: False = its code failed, and its execution is not typical; None =
    #: unknown.
    succeeded: bool | None = None


class DoorOpened(Checked):
    """Op `door` → Done: the lease's own port is open; push `end` if the lease is over."""

    lease: LeaseName
    address: Address


class Cut(Checked):
    """Op `cut` → Done: the lease's processes are gone from this host and its memory is free.

    For information only: no grant waits for it.
    """

    lease: LeaseName


class Draining(Checked):
    """Op `draining` → Done: no new leases here, because the program stops or the machine leaves.

    Live leases continue; `preempt_grace_s` before the limit each gets the notice of a preemption,
    and its end is PREEMPTED. NOT_FOUND: the host is unknown and must send its hello.
    """

    draining: bool  #: False: the host takes leases again
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    #: Seconds from receipt until the host is gone; None = not known.
    limit_s: Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)] | None = None


#: Signed headers of a presigned request with which a host joins.
SERVER_HEADER = "x-orchgpu-server"
NONCE_HEADER = "x-orchgpu-nonce"
#: The ops of a host that joins by its IAM role; it has no key yet.
JOIN_OPS = ("join_challenge", "join")


class ChallengeAsked(Value):
    """Op `join_challenge`, before the hello → JoinChallenge | INVALID (hosts join by key only)."""


class JoinChallenge(Value):
    """The values that a joining host signs."""

    server: str  #: name of this scheduler
    nonce: str  #: for one `join` on this connection


class Join(Value):
    """Op `join`, before the hello → JoinAnswer | DENIED | UNAVAILABLE.

    Proves an IAM role by a presigned `GetCallerIdentity` request that signs the challenge.
    """

    host: Annotated[str, NAME]
    url: str


class JoinAnswer(Value):
    """The key for the hello of that host."""

    key: str
    lasts_s: float


HostOp = HostHello | Report | SessionChange | Cut | DoorOpened | InstallsAsked | Draining

#: Wire name → class of every op of a host but `hello`.
HOST_OPS: Mapping[
    str, type[Report | SessionChange | Cut | DoorOpened | MoreInstalled | InstallsAsked | Draining]
] = {
    "report": Report,
    "session": SessionChange,
    "cut": Cut,
    "door": DoorOpened,
    "installed": MoreInstalled,
    "installs": InstallsAsked,
    "draining": Draining,
}
