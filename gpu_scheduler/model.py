"""The values of the scheduler: Device, Request, Lease, Record, Refusal, the closed sets.

All values are frozen and travel as JSON through `corekit.decode` (`encode` and `decode`).
Sizes: memory in MiB, compute in percent of one device, times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from corekit.errors import invalid
from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId
from corekit.values import Checked, Meta, Value, checked, field
from gpu_scheduler.names import NAME, name_problem
from gpu_scheduler.versions import is_version

#: A block is a note, not a store: records of 100,000 jobs must stay small.
BLOCK_BYTES_MAX = 4096
PREFERENCES_MAX = 64  #: kinds and models of one request
DETAIL_CHARS_MAX = 500  #: a sentence about a device
RESIDENT_MAX = 1024  #: warm keys of one device
MEMORY_MIB_MAX = 2**31 - 1
FIGURE_MAX = 2**31 - 1  #: of one figure in a report; what is above is an error of the probe
COUNT_MAX = 64  #: devices of one request; the largest single hosts have 16
LENGTH_S_MAX = 366 * 86400.0  #: of a lease, a wait, a deadline: a year is a mistake or for ever


class DeviceKind(StrEnum):
    """What programs a device runs; an operation may have one implementation per kind."""

    CUDA = "cuda"
    OPENCL = "opencl"
    CPU = "cpu"
    VPU = "vpu"


class Sharing(StrEnum):
    SHARED = "shared"  #: other leases may use the rest of the device
    EXCLUSIVE = "exclusive"  #: the whole device, whatever memory was asked


class Placement(StrEnum):
    """How the devices of one request with count > 1 may lie; PACK also guides single devices."""

    PACK = "pack"  #: fill the fullest device that fits
    SPREAD = "spread"  #: use the emptiest
    SAME_HOST = "same_host"  #: all devices of the request on one host


class Health(StrEnum):
    """How far a device may be trusted. Only OK devices get new leases."""

    OK = "OK"
    SUSPECT = "SUSPECT"  #: nothing new until a clean check; the leases it has go on
    BAD = "BAD"  #: nothing new, and its leases end as DEVICE_BAD


class Symptom(StrEnum):
    """What speaks against a device. A closed set; `Device.detail` says more."""

    XID = "XID"  #: the driver reported a critical Xid event
    ECC = "ECC"  #: uncorrectable memory errors, or remapping ran out of rows
    MEMORY_HELD = "MEMORY_HELD"  #: memory is in use that no live lease accounts for
    HUNG = "HUNG"  #: a process on it cannot be killed, or its driver does not answer
    PROBE = "PROBE"  #: its monitor could not look at it
    MISSING = "MISSING"  #: its host no longer names it
    RECOVERING = "RECOVERING"  #: was BAD; clean since, but not for `device_clean_s` yet
    OTHER = "OTHER"  #: also one that only a newer host knows; the detail says more


class LeaseLifetime(StrEnum):
    """What keeps a lease alive."""

    SESSION = "session"  #: the session through the gateway (our functions)
    DEADLINE = "deadline"  #: a fixed length (classic `ssgm -alloc`): weaker, documented as such


class Door(StrEnum):
    """How its holder reaches the device."""

    GATEWAY = "gateway"  #: the host's one port, with proof of the secret
    PORT = "port"  #: a port of its own, source addresses limited (classic)


def _word_problem(text: str) -> str | None:
    return name_problem(text, at_least=0)


def _version_problem(text: str) -> str | None:
    return None if is_version(text) else "must be numbers with dots between, as 550.54"


Name = Annotated[str, NAME]
#: A name, or nothing.
Word = Annotated[str, Meta(extra={"problem": _word_problem})]
Version = Annotated[str, Meta(extra={"problem": _version_problem})]
MemoryMib = Annotated[int, Meta(ge=0, le=MEMORY_MIB_MAX)]
Figure = Annotated[int, Meta(ge=0, le=FIGURE_MAX)]
Percent = Annotated[int, Meta(ge=0, le=100)]
#: How long a request may wait, in seconds.
WaitS = Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)]


class Request(Checked):
    """The devices that an attempt asks for. Validated on construction (raises INVALID)."""

    count: Annotated[int, Meta(ge=1, le=COUNT_MAX)] = 1  #: devices
    kinds: tuple[DeviceKind, ...] = ()  #: in order of preference; empty = any
    #: In order of preference; empty = any.
    models: Annotated[tuple[Name, ...], Meta(max_length=PREFERENCES_MAX)] = ()
    #: Per device; 0 = the whole memory of an exclusive device, none of a shared one.
    memory_mib: MemoryMib = 0
    memory_max_mib: MemoryMib | None = None  #: no device that is larger as a whole; None = any
    compute_guarantee_pct: Percent = 0  #: of one device; guarantees never add up to more than 100
    #: Elastic upper bound; nothing is promised above the guarantee.
    compute_limit_pct: Annotated[int, Meta(ge=1, le=100)] = 100
    sharing: Sharing = Sharing.SHARED
    placement: Placement = Placement.PACK
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0  #: higher goes first
    tenant: Name = "default"
    warm_key: Name | None = None  #: model or module hash that should already be resident
    advisory: bool = False  #: True: devices watched by ssgm-monitor alone (no gateway) will do
    middleware: Name | None = None  #: its hosts must offer this one: "rcuda"; None = any host
    min_driver: Version | None = None  #: lowest driver version that will do: "550.54"
    min_runtime: Version | None = None  #: lowest CUDA or OpenCL version that will do: "12.4"
    max_wait_s: WaitS | None = None  #: a waiting request is refused as busy after this
    #: Give up this long after the job began to wait: unlike `max_wait_s` it counts through
    #: hand-backs and further attempts. Relative, because no clock is shared.
    deadline_s: WaitS | None = None
    #: Its holder needs it at most this long (a deadline lease ends then); None = not known.
    #: Forecasts and backfill go by it.
    lease_s: Annotated[float, Meta(gt=0, le=LENGTH_S_MAX)] | None = None

    def __post_init__(self) -> None:
        checked(self)
        if self.compute_guarantee_pct > self.compute_limit_pct:
            raise invalid("compute_guarantee_pct must not exceed compute_limit_pct")
        if self.memory_max_mib is not None and self.memory_mib > self.memory_max_mib:
            raise invalid("memory_mib must not exceed memory_max_mib")
        if len(self.kinds) + len(self.models) > PREFERENCES_MAX:
            raise invalid(f"kinds and models together name at most {PREFERENCES_MAX}")


class Device(Checked):
    """One accelerator as its monitor describes it. Validated on construction (raises INVALID)."""

    id: Annotated[DeviceId, NAME]  #: uuid, unique in the whole system (cpu: "<host>/cpu0")
    #: On its host, as CUDA_VISIBLE_DEVICES or RCUDA_DEVICE_n would count.
    index: Annotated[int, Meta(ge=0, le=2**16 - 1)]
    kind: DeviceKind
    model: Word
    memory_mib: MemoryMib  #: what may be promised: total less the host's own reserve
    driver: Word = ""  #: version of its driver ("550.54.15"); "" = not known, serves no minimum
    runtime: Word = ""  #: highest CUDA version the driver runs, or the OpenCL version
    health: Health = Health.OK
    symptoms: tuple[Symptom, ...] = ()  #: why it is not OK
    #: For people: "one CPU shared with host b", why it is not OK.
    detail: Annotated[str, Meta(max_length=DETAIL_CHARS_MAX)] = ""
    #: Names of trusted operations implemented for its kind.
    operations: Annotated[tuple[Word, ...], Meta(max_length=RESIDENT_MAX)] = ()
    resident: Annotated[tuple[Word, ...], Meta(max_length=RESIDENT_MAX)] = ()  #: warm keys

    def __post_init__(self) -> None:
        checked(self)
        if self.health is Health.OK and self.symptoms:
            raise invalid(f"device {self.id}: symptoms belong to SUSPECT or BAD devices")


class Usage(Checked):
    """A device's live figures in one report; facts for people and balance, never for admission."""

    device: DeviceId
    memory_used_mib: Figure
    utilisation_pct: Figure
    processes: Figure = 0
    #: None: the device does not report it.
    temperature_c: Annotated[int, Meta(ge=-FIGURE_MAX, le=FIGURE_MAX)] | None = None
    power_w: Figure | None = None


class HostState(StrEnum):
    UP = "UP"
    STALE = "STALE"  #: silent for host_stale_s: no new promises there
    LOST = "LOST"  #: silent for host_lost_s: its leases ended as HOST_LOST
    DRAINED = "DRAINED"  #: an operator wants no new leases there


class LeaseState(StrEnum):
    RESERVED = "RESERVED"  #: promised; no session yet
    ACTIVE = "ACTIVE"  #: its session is open
    ENDING = "ENDING"  #: the device is given back, the session still open (outputs, result)
    ENDED = "ENDED"


class EndReason(StrEnum):
    """Why a lease ended. A closed set."""

    DONE = "DONE"  #: its session closed in order
    RELEASED = "RELEASED"  #: its holder gave it back or finished
    NOT_STARTED = "NOT_STARTED"  #: no session by connect_by
    EXPIRED = "EXPIRED"  #: RESERVED and not renewed, or a deadline lease that reached its end
    NOT_ACCEPTED = "NOT_ACCEPTED"  #: a waiter's grant that nobody took
    SESSION_LOST = "SESSION_LOST"
    CAP = "CAP"
    REVOKED = "REVOKED"
    HOST_LOST = "HOST_LOST"
    HOST_RESTARTED = "HOST_RESTARTED"  #: the host came back with a new incarnation
    DEVICE_BAD = "DEVICE_BAD"


class Share(Value):
    """A part of one device, promised to one lease."""

    host: HostId
    device: DeviceId
    index: int
    kind: DeviceKind
    model: str
    memory_mib: int
    compute_guarantee_pct: int
    compute_limit_pct: int
    exclusive: bool


class Lease(Value):
    """Shares promised to one attempt."""

    id: LeaseId
    attempt: AttemptId  #: idempotency key of the request it answers
    holder: JobId | None  #: the job record it belongs to, if any
    fence: int  #: journal position of the grant; rises with every grant of the whole scheduler
    state: LeaseState
    shares: tuple[Share, ...]
    tenant: str = "default"
    hold: LeaseLifetime = LeaseLifetime.SESSION
    door: Door = Door.GATEWAY
    sources: tuple[str, ...] = ()  #: Door.PORT: networks whose machines may connect
    doors: Mapping[str, str] = field(default_factory=dict)  #: host → "address:port" of its own
    end_reason: EndReason | None = None
    end_detail: str = ""


class GrantedLease(Value):
    """A lease with what its holder needs to reach it; secrets appear here and nowhere else."""

    lease: Lease
    epoch: int
    gateways: Mapping[str, str]  #: host id → "address:port" of its gateway
    secrets: Mapping[str, str]  #: host id → hex of the 32-byte secret


class Step(StrEnum):
    """Where a job is, as its record knows it (the job states of `contract`, as opaque words)."""

    RECEIVED = "RECEIVED"
    WAITING = "WAITING"
    RESERVED = "RESERVED"
    STAGED = "STAGED"
    RUNNING = "RUNNING"
    COMMITTED = "COMMITTED"
    ENDED = "ENDED"


#: In `Record.times`, beside the steps: the wall clock before which no next attempt should open.
RETRY_AT = "RETRY_AT"
#: And when the lease of the newest attempt ended.
LEASE_ENDED = "LEASE_ENDED"


class Record(Value):
    """The small durable note about one job, shared by all orchestrators; writes compare-and-set."""

    holder: JobId
    revision: int  #: rises with every write; 1 is the first
    owner: str | None  #: orchestrator session that acts for it; None = up for adoption
    attempt: int  #: n of the newest attempt; 0 = none opened yet
    step: Step
    strikes: int  #: owners that died while packing this attempt
    waiting_since_s: float | None  #: scheduler's wall clock; keeps its place through hand-backs
    handle: str  #: newest SQS receipt handle
    block: Mapping[str, Any] = field(default_factory=dict)  #: the orchestrator's, ≤ BLOCK_BYTES_MAX
    outcome: str | None = None  #: terminal job state, set by finish
    reason: str | None = None
    lease: LeaseId | None = None  #: of the newest attempt
    key: str = ""  #: whose session made it, by the name of the key; "" = there were no keys
    tenant: str | None = None  #: of the newest request
    updated_s: float = 0.0  #: scheduler's wall clock
    times: Mapping[str, float] = field(default_factory=dict)  #: step name → wall clock of its entry


class RefusalKind(StrEnum):
    BUSY = "busy"  #: fits the inventory, not the moment
    IMPOSSIBLE = "impossible"  #: fits no known device, whatever is freed


class NoFit(StrEnum):
    """Why one device does not take a request. A closed set; `explain` counts them."""

    KIND = "KIND"
    MODEL = "MODEL"
    MEMORY = "MEMORY"
    TOO_LARGE = "TOO_LARGE"  #: the device is larger than the request allows, or its tenant's quota
    COMPUTE = "COMPUTE"
    DRIVER = "DRIVER"  #: older than the wanted minimum, or not known
    RUNTIME = "RUNTIME"  #: older than the wanted minimum, or not known
    EXCLUSIVE_TAKEN = "EXCLUSIVE_TAKEN"  #: somebody holds it exclusively
    SHARED_TAKEN = "SHARED_TAKEN"  #: wanted exclusively, but shares are lent
    HOST_STALE = "HOST_STALE"
    HOST_LOST = "HOST_LOST"
    DRAINED = "DRAINED"
    SUSPECT = "SUSPECT"
    BAD = "BAD"
    MIDDLEWARE = "MIDDLEWARE"  #: its host does not offer the wanted one
    ADVISORY = "ADVISORY"  #: no gateway there and the request does not accept that
    SAME_HOST = "SAME_HOST"  #: fits, but its host has too few that fit
    COUNT = "COUNT"  #: of no one device: too few are known
    RESERVED_FOR_HEAD = "RESERVED_FOR_HEAD"  #: kept for a request bypassed too often


class Limit(StrEnum):
    """Which limit refuses a request for now (EXHAUSTED, `details.limit`). A closed set.

    Each has a parameter of its own name in lower case (`gpu_scheduler/parameters.py`).
    """

    WAITING_MAX = "WAITING_MAX"  #: requests in the queue of the whole scheduler
    KEY_WAITING_MAX = "KEY_WAITING_MAX"  #: of one key
    TENANT_WAITING_MAX = "TENANT_WAITING_MAX"  #: of one tenant
    RECORDS_MAX = "RECORDS_MAX"  #: job records of the whole scheduler
    KEY_RECORDS_MAX = "KEY_RECORDS_MAX"
    TENANT_RECORDS_MAX = "TENANT_RECORDS_MAX"
    RATE_PER_S = "RATE_PER_S"  #: requests a second of everybody together
    KEY_RATE_PER_S = "KEY_RATE_PER_S"
    TENANT_RATE_PER_S = "TENANT_RATE_PER_S"


class HeldBack(StrEnum):
    """What keeps a request waiting when it is not that devices are lent. A closed set."""

    QUOTA = "QUOTA"  #: its tenant holds as much as it may
    OUT_OF_SERVICE = "OUT_OF_SERVICE"  #: too few devices for it are up, healthy and not drained
    LEASES_MAX = "LEASES_MAX"  #: as many leases live as may
    JOURNAL_FULL = "JOURNAL_FULL"  #: the scheduler's disk


class DeviceVerdict(Value):
    """What one device says to a request."""

    host: HostId
    device: DeviceId
    index: int
    kind: DeviceKind
    model: str
    reason: NoFit | None  #: why it does not take it now; None = it does
    free_mib: int
    free_pct: int
    detail: str = ""  #: its health in words


class Shortage(Value):
    """What an impossible request wants and all known devices together do not have."""

    #: KIND, MODEL, MIDDLEWARE, ADVISORY, DRIVER, RUNTIME, TOO_LARGE, MEMORY, SAME_HOST or COUNT
    what: NoFit
    wanted: str
    most: str  #: the most, or the newest, that is known; the kinds or models that are


class Explanation(Value):
    """Why a request waits or was refused: data first, one sentence for people."""

    devices_known: int
    devices_fitting: int  #: of the `count` needed, right now
    counts: Mapping[str, int]  #: NoFit → devices
    position: int | None  #: in the queue, 1 = next; None when not queued
    largest_fit: str  #: "1 × cpu with 8192 MiB, 100 %": `largest` in words
    sentence: str
    late: bool = False  #: its deadline passed: no device can help any more
    held_back: HeldBack | None = None  #: None: the devices are lent, or others come first
    # --- of an impossible request, and of `explain`
    short: Shortage | None = None  #: None: it is possible
    #: The most of this sort that all known devices hold when nothing is lent; None = none known.
    largest: Request | None = None
    # --- only of `explain`
    devices: tuple[DeviceVerdict, ...] = ()  #: those first that could ever serve it
    devices_left_out: int = 0
    expected_s: float | None = None  #: from now until enough devices are free; None = not known
    expected_why: str = ""  #: what that rests on, or why it is not known


class Refusal(Value):
    """A request that is not granted now (busy) or ever (impossible)."""

    kind: RefusalKind
    explanation: Explanation
